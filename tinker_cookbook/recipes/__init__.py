"""Things to run and to start from: each folder has a README and a variant that runs in about a minute."""
