"""The method `focal` for erniecore: supervised fine-tuning with the focal loss."""
