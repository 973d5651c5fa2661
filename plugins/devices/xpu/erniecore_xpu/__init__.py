"""The device xpu for erniecore: Kunlunxin XPUs."""
