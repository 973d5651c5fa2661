"""The device npu for erniecore: Ascend NPUs."""
