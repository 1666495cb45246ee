"""Scripts as they were written for TensorFlow 1, unchanged, beside what TensorFlow printed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from aioqueue.compat.v1.checking import check
from tests.compat.record_scripts import FOLDER
from tests.compat.warm import WARM
from tests.kit.children import ROOT, environment

FAMILIES = {
    "queues": ["priority_scheduler", "async_feeding"],
    "threads of the script": [
        "word2vec_batches",
        "custom_runner",
        "deepspeech_feeder",
        "faster_rcnn_layers",
        "tacotron_feeder",
        "wavenet_audio_reader",
    ],
    "variables": ["replay_buffer", "ptb_producer"],
    "text": ["csv_regression", "tables_and_sparse"],
    "buckets": ["seq2seq_buckets", "im2txt_inputs", "recommender_sessions"],
    "records": [
        "mnist_records",
        "ocr_reader",
        "pointnet_provider",
        "private_reader_ops",
        "slim_dataset_provider",
        "youtube8m_readers",
    ],
    "pictures": [
        "cifar10_input",
        "cyclegan_reader",
        "deeplab_resnet_reader",
        "facenet_input",
        "inception_inputs",
        "monodepth_loader",
        "pix2pix_load",
        "srgan_patches",
        "video_clips",
    ],
    "datasets": ["nmt_iterator", "deeplab_generator", "feedable_iterators", "transformer_dataset"],
    "sessions": ["monitored_trainer", "cifar10_train", "summaries_logging"],
    "checkpoints": ["checkpointed_trainer", "hooked_trainer"],
    "supervisors": ["sync_replicas", "supervised_trainer", "staged_benchmark"],
}
"""The scripts by what is most of them; the default run has the first of each."""

SCRIPTS = [
    pytest.param(name, marks=[pytest.mark.slow] if name != names[0] else [], id=name)
    for names in FAMILIES.values()
    for name in names
]
EXTRAS = {"google.protobuf": "tfrecord", "google_crc32c": "tfrecord", "PIL": "images"}
NEEDED = {"TFRecord": "google_crc32c", "tf.train.Example": "google.protobuf", "tf.image": "PIL"}


def test_each_has_a_family_and_a_record() -> None:
    families = [name for names in FAMILIES.values() for name in names]
    assert sorted(families) == sorted(path.stem for path in FOLDER.glob("*.py"))
    assert sorted(families) == sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_prints_what_tensorflow_printed(name: str, tmp_path: Path) -> None:
    script = FOLDER / f"{name}.py"
    source = script.read_text(encoding="utf-8")
    for word, module in NEEDED.items():
        if word in source and importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"the extra `{EXTRAS[module]}` is not installed")
    absent = [one.name for one in check(str(script)).absent]
    if absent and all(one.startswith("image.") for one in absent):
        pytest.skip(f"needs {', '.join(absent)}")
    assert absent == []
    done = WARM.run(
        "-m",
        "aioqueue.compat.v1",
        str(script),
        cwd=ROOT,
        environment={**environment(), "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    printed = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":  # it shows scalars without their types
        printed = re.sub(r"\bnp\.\w+\(([^()]*)\)", r"\1", printed)
    assert done.stdout == printed, done.stderr
