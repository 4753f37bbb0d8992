"""What `tinker-engine doctor` looks at. A check yields findings; it never raises for what it was made to find."""
