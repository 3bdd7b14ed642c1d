"""Models of torchvision and transformers, built by their own classes at small widths and depths."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn
from torch_models import Case

rng = np.random.default_rng(1)
IMAGE = rng.standard_normal((3, 16, 16))
TOKENS = np.array([1, 2, 3, 7])


def declare_torchvision_operators() -> None:
    """torchvision checks for its compiled operators, which do not load beside a PyTorch without CUDA."""
    if find_spec("torchvision") is None or torch.version.cuda or "+" in version("torchvision"):
        return
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)


KEPT: list[Any] = []


def resnet(n: int) -> nn.Module:
    """torchvision's ResNet with BasicBlock, of two stages and of n channels instead of 64."""
    from torchvision.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=1)
    model.inplanes = n
    model.conv1, model.bn1 = nn.Conv2d(3, n, 7, 2, 3, bias=False), nn.BatchNorm2d(n)
    model.layer1 = model._make_layer(BasicBlock, n, 1)
    model.layer2 = model._make_layer(BasicBlock, 2 * n, 1, stride=2)
    model.layer3, model.layer4, model.fc = nn.Identity(), nn.Identity(), nn.Linear(2 * n, 1)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def densenet(n: int) -> nn.Module:
    from torchvision.models import DenseNet

    return DenseNet(n, (2, 2), n, num_classes=1)


def mobilenet(n: int) -> nn.Module:
    from torchvision.models import MobileNetV2

    return MobileNetV2(1, width_mult=n / 16, inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 1, 2]])


def convnext(n: int) -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(n, 2 * n, 1), CNBlockConfig(2 * n, None, 1)], num_classes=1)


def vit(n: int) -> nn.Module:
    """Its head is filled with zeros, so it gets one that is not."""
    from torchvision.models import VisionTransformer

    model = VisionTransformer(16, 8, 2, 2, n, 4 * n, num_classes=1)
    nn.init.normal_(model.heads.head.weight, std=n**-0.5)
    return model


class Headed(nn.Module):
    """Hidden states of a model of transformers, and a readout."""

    def __init__(self, body: nn.Module, n: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(n, 1, bias=False)

    def forward(self, tokens):
        return self.head(self.body(tokens).last_hidden_state)


def gpt2(n: int) -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        *(),
        n_layer=2,
        n_embd=n,
        n_head=2,
        vocab_size=50,
        n_positions=16,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Headed(GPT2Model(config), n)


def sizes(n: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": 2,
        "hidden_size": n,
        "num_attention_heads": 2,
        "intermediate_size": 4 * n,
        "vocab_size": 50,
        "max_position_embeddings": 16,
    }


def bert(n: int) -> nn.Module:
    from transformers import BertConfig, BertModel

    return Headed(BertModel(BertConfig(**sizes(n)), add_pooling_layer=False), n)


def llama(n: int, **heads: int) -> nn.Module:
    """Heads of size 2 that grow in number, or others."""
    from transformers import LlamaConfig, LlamaModel

    heads = heads or {"head_dim": 2, "num_attention_heads": n // 2, "num_key_value_heads": n // 4}
    return Headed(LlamaModel(LlamaConfig(**(sizes(n) | heads), use_cache=False)), n)


def t5_encoder(n: int) -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        d_model=n, d_kv=n // 2, d_ff=4 * n, num_layers=1, num_heads=2, vocab_size=50, use_cache=False
    )
    return Headed(T5EncoderModel(config), n)


WIDTH_LAWS = {
    "tokens": True,
    "scales": "width",
    "laws": {"body.*": "width"},
}  # a fixed standard deviation of 0.02
TORCHVISION = {
    "resnet": Case(resnet, IMAGE),
    "densenet": Case(densenet, IMAGE),
    "mobilenet": Case(mobilenet, IMAGE, {"laws": {"classifier.1.weight": "width"}}),
    "convnext": Case(convnext, IMAGE, {"laws": {"*": "width"}}),
    "vit": Case(vit, IMAGE, {"scales": "width"}),
}
TRANSFORMERS = {
    "gpt2": Case(gpt2, TOKENS, WIDTH_LAWS),
    "bert": Case(bert, TOKENS, WIDTH_LAWS),
    "llama": Case(llama, TOKENS, WIDTH_LAWS),
    "llama, two wide heads": Case(lambda n: llama(n, num_key_value_heads=1), TOKENS, WIDTH_LAWS),
    "t5 encoder": Case(
        t5_encoder,
        TOKENS,
        {"tokens": True, "scales": "width", "laws": {"*relative_attention_bias*": "values"}},
    ),
}
