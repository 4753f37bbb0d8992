"""Losses that the Tinker API has no name for: sent as loss "custom" with `loss_id` in its options.

Only names, because the process that speaks HTTP tells them and has no torch.
"""

CUSTOM = "custom"
DPO = "tinker_engine/dpo"
OWN_LOSSES = (DPO,)
