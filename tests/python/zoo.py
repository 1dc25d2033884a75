# SPDX-License-Identifier: Apache-2.0
"""Unmodified models of transformers, torchvision and torch.nn in small configurations.

Each entry makes a model and a closure for its loss; names are those of the table in docs/python.md.
"""

import logging
import warnings

import torch
import torch.nn.functional as F
from torch import nn

logging.getLogger("transformers").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

try:
    import transformers as T
except ImportError:
    T = None
try:
    import torchvision.models as V
except ImportError:
    V = None

SIZES = dict(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, vocab_size=200)
TOKENS = dict(bos_token_id=0, eos_token_id=0, pad_token_id=0)
IMAGE = dict(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, image_size=64, patch_size=8, num_labels=10)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def ids(batch=4, length=64, vocabulary=200):
    return torch.randint(1, vocabulary, (batch, length), generator=generator())


def images(batch=4, size=64, channels=3):
    return torch.randn(batch, channels, size, size, generator=generator())


# Inputs are made with the model, so that they are counted as the model is.


def language_model(cls, config):
    def make():
        x = ids()
        return getattr(T, cls)(config()), lambda model: model(input_ids=x, labels=x).loss

    return make


def class_loss(output):
    output = getattr(output, "logits", output)
    if isinstance(output, dict):
        output = output["out"]
    if isinstance(output, tuple):
        output = output[0]
    if output.dim() == 4:
        output = output.mean((2, 3))
    return F.cross_entropy(output, torch.arange(output.shape[0]) % output.shape[1])


def image_model(cls, config, **inputs):
    def make():
        x = images(**inputs)
        return getattr(T, cls)(config()), lambda model: class_loss(model(pixel_values=x))

    return make


def vision(name, batch=4, size=64, **options):
    def make():
        x = images(batch, size)
        return getattr(V, name)(weights=None, num_classes=10, **options), lambda model: class_loss(model(x))

    return make


def segmentation(name, batch=2, size=64):
    def make():
        x = images(batch, size)
        net = getattr(V.segmentation, name)(weights=None, weights_backbone=None, num_classes=10)
        return net, lambda model: class_loss(model(x))

    return make


def transformers_zoo():
    text = {
        "bert": ("BertForMaskedLM", lambda: T.BertConfig(**SIZES)),
        "roberta": ("RobertaForMaskedLM", lambda: T.RobertaConfig(**SIZES, max_position_embeddings=80)),
        "albert": ("AlbertForMaskedLM", lambda: T.AlbertConfig(**SIZES, embedding_size=32)),
        "electra": ("ElectraForMaskedLM", lambda: T.ElectraConfig(**SIZES, embedding_size=64)),
        "deberta-v2": ("DebertaV2ForMaskedLM", lambda: T.DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16)),
        "distilbert": ("DistilBertForMaskedLM", lambda: T.DistilBertConfig(vocab_size=200, dim=64, n_layers=4, n_heads=4, hidden_dim=256)),
        "mpnet": ("MPNetForMaskedLM", lambda: T.MPNetConfig(**SIZES, max_position_embeddings=80)),
        "modernbert": ("ModernBertForMaskedLM", lambda: T.ModernBertConfig(**{**SIZES, **TOKENS}, cls_token_id=0, sep_token_id=0, attn_implementation="eager")),
        "gpt2": ("GPT2LMHeadModel", lambda: T.GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=200, n_positions=64, **TOKENS)),
        "gpt-neo": ("GPTNeoForCausalLM", lambda: T.GPTNeoConfig(hidden_size=64, num_layers=4, num_heads=4, vocab_size=200, attention_types=[[["global", "local"], 2]], window_size=16, max_position_embeddings=64, **TOKENS)),
        "gpt-neox": ("GPTNeoXForCausalLM", lambda: T.GPTNeoXConfig(**SIZES, **TOKENS)),
        "opt": ("OPTForCausalLM", lambda: T.OPTConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, ffn_dim=256, vocab_size=200, word_embed_proj_dim=64, **TOKENS)),
        "bloom": ("BloomForCausalLM", lambda: T.BloomConfig(hidden_size=64, n_layer=4, n_head=4, vocab_size=200, **TOKENS)),
        "llama": ("LlamaForCausalLM", lambda: T.LlamaConfig(**SIZES, **TOKENS, num_key_value_heads=2)),
        "mistral": ("MistralForCausalLM", lambda: T.MistralConfig(**SIZES, **TOKENS, num_key_value_heads=2, sliding_window=16)),
        "qwen2": ("Qwen2ForCausalLM", lambda: T.Qwen2Config(**SIZES, **TOKENS, num_key_value_heads=2)),
        "qwen3": ("Qwen3ForCausalLM", lambda: T.Qwen3Config(**SIZES, **TOKENS, num_key_value_heads=2, head_dim=16)),
        "gemma2": ("Gemma2ForCausalLM", lambda: T.Gemma2Config(**SIZES, **TOKENS, num_key_value_heads=2, head_dim=16, sliding_window=16)),
        "phi": ("PhiForCausalLM", lambda: T.PhiConfig(**SIZES, **TOKENS)),
        "olmo": ("OlmoForCausalLM", lambda: T.OlmoConfig(**SIZES, **TOKENS)),
        "falcon": ("FalconForCausalLM", lambda: T.FalconConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, vocab_size=200, **TOKENS)),
        "mixtral": ("MixtralForCausalLM", lambda: T.MixtralConfig(**SIZES, **TOKENS, num_key_value_heads=2, num_local_experts=4)),
        "qwen2-moe": ("Qwen2MoeForCausalLM", lambda: T.Qwen2MoeConfig(**SIZES, **TOKENS, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)),
        "mamba": ("MambaForCausalLM", lambda: T.MambaConfig(hidden_size=64, num_hidden_layers=4, vocab_size=200, state_size=8, **TOKENS)),
        "xlnet": ("XLNetLMHeadModel", lambda: T.XLNetConfig(vocab_size=200, d_model=64, n_layer=4, n_head=4, d_inner=256, **TOKENS)),
        "t5": ("T5ForConditionalGeneration", lambda: T.T5Config(d_model=64, d_ff=256, num_layers=3, num_heads=4, d_kv=16, vocab_size=200, decoder_start_token_id=0)),
        "bart": ("BartForConditionalGeneration", lambda: T.BartConfig(d_model=64, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, vocab_size=200, decoder_start_token_id=0, forced_eos_token_id=None, **TOKENS)),
    }
    zoo = {name: language_model(cls, config) for name, (cls, config) in text.items()}
    zoo["vit"] = image_model("ViTForImageClassification", lambda: T.ViTConfig(**IMAGE), size=64)
    zoo["deit"] = image_model("DeiTForImageClassification", lambda: T.DeiTConfig(**IMAGE), size=64)
    zoo["beit"] = image_model("BeitForImageClassification", lambda: T.BeitConfig(**IMAGE), size=64)
    zoo["segformer"] = image_model(
        "SegformerForImageClassification",
        lambda: T.SegformerConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_labels=10, decoder_hidden_size=32),
        size=64,
    )

    def wav2vec2():
        sound = torch.randn(2, 4000, generator=generator())
        steps = torch.randint(1, 20, (2, 6), generator=generator())
        config = T.Wav2Vec2Config(**{**SIZES, "vocab_size": 20}, conv_dim=(32, 32, 32), conv_stride=(5, 4, 4), conv_kernel=(10, 8, 4), num_feat_extract_layers=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_length=2, ctc_zero_infinity=True)
        return T.Wav2Vec2ForCTC(config), lambda model: model(sound, labels=steps).loss

    def whisper():
        spectrum = torch.randn(2, 16, 128, generator=generator())
        words = ids(2, 32)
        config = T.WhisperConfig(vocab_size=200, d_model=64, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, num_mel_bins=16, max_source_positions=64, max_target_positions=64, decoder_start_token_id=0, **TOKENS)
        return T.WhisperForConditionalGeneration(config), lambda model: model(input_features=spectrum, labels=words).loss

    def clip():
        words, pictures = ids(), images()
        config = T.CLIPConfig(text_config={**SIZES, "max_position_embeddings": 64, **TOKENS}, vision_config=IMAGE, projection_dim=32)
        return T.CLIPModel(config), lambda model: model(input_ids=words, pixel_values=pictures, return_loss=True).loss

    zoo.update({"wav2vec2": wav2vec2, "whisper": whisper, "clip": clip})
    return zoo


def torchvision_zoo():
    zoo = {
        name.replace("_", "-"): vision(name)
        for name in ["resnet18", "resnet50", "densenet121", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "swin_t", "shufflenet_v2_x1_0", "regnet_y_400mf", "mnasnet1_0", "squeezenet1_1"]
    }
    zoo["vgg11-bn"] = vision("vgg11_bn", size=32)
    zoo["vit-b-16 (torchvision)"] = vision("vit_b_16", batch=2, image_size=64, size=64)
    zoo["fcn-resnet50"] = segmentation("fcn_resnet50")
    zoo["deeplabv3"] = segmentation("deeplabv3_mobilenet_v3_large")
    zoo["lraspp"] = segmentation("lraspp_mobilenet_v3_large")
    return zoo


class Graph(nn.Module):
    """Graph convolutions with a sparse adjacency."""

    def __init__(self, layers=6, width=64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, adjacency, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.dropout(F.relu(norm(torch.sparse.mm(adjacency, layer(x)))), 0.1, self.training)
        return x


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip(sizes, sizes[1:]))
        self.up = nn.ModuleList(self.block(a + b, a) for a, b in zip([width, 2 * width], [2 * width, 4 * width]))
        self.head = nn.Conv2d(width, 10, 1)

    def block(self, a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True), nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = F.interpolate(x, scale_factor=2)
        for block, skip in [(self.up[1], skips[1]), (self.up[0], skips[0])]:
            x = F.interpolate(x, size=skip.shape[-2:])
            x = block(torch.cat([x, skip], 1))
        return self.head(x)


def graph():
    n = 512
    edges = torch.randint(0, n, (2, 4 * n), generator=generator())
    adjacency = torch.sparse_coo_tensor(edges, torch.full((4 * n,), 0.25), (n, n)).coalesce()
    x = torch.randn(n, 64, generator=generator())
    return Graph(), lambda model: model(adjacency, x).square().mean()


def nn_zoo():
    def encoder():
        x = torch.randn(8, 64, 64, generator=generator())
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        return nn.TransformerEncoder(layer, 6), lambda model: model(x).square().mean()

    def translation():
        x = torch.randn(8, 64, 64, generator=generator())
        return nn.Transformer(64, 4, 3, 3, 256, batch_first=True), lambda model: model(x, x[:, :32]).square().mean()

    def recurrent(cls):
        x = torch.randn(16, 60, 32, generator=generator())
        return cls(32, 64, 2, batch_first=True, dropout=0.1), lambda model: model(x)[0].square().mean()

    def unet():
        x = images(4, 32)
        return UNet(), lambda model: class_loss(model(x))

    return {
        "nn.TransformerEncoder": encoder,
        "nn.Transformer": translation,
        "nn.LSTM": lambda: recurrent(nn.LSTM),
        "nn.GRU": lambda: recurrent(nn.GRU),
        "U-Net": unet,
        "graph convolutions, sparse": graph,
    }


def all_models():
    zoo = {}
    if T:
        zoo.update(transformers_zoo())
    if V:
        zoo.update(torchvision_zoo())
    zoo.update(nn_zoo())
    return zoo
