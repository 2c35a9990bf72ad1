"""Settings as the commands check them."""

from pathlib import Path

from godwit.cli_settings import check_worker
from godwit.config import ModelSettings, Settings


def test_a_model_of_vllm_may_be_a_folder(tmp_path: Path) -> None:
    check_worker(Settings(models=(ModelSettings(name="qwen", engine="vllm", path=str(tmp_path)),)))
