"""From a base model to one that people prefer: fine-tuning, a judge of answers, reinforcement learning on the judge."""
