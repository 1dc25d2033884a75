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
    import torchvision
    import torchvision.models as V
except ImportError:
    V = None

SIZES = dict(hidden_size=64, num_hidden_layers=12, num_attention_heads=4, intermediate_size=256, vocab_size=200)
TOKENS = dict(bos_token_id=0, eos_token_id=0, pad_token_id=0)
IMAGE = dict(hidden_size=64, num_hidden_layers=12, num_attention_heads=4, intermediate_size=256, image_size=64, patch_size=8, num_labels=10)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def ids(batch=2, length=64, vocabulary=200):
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
        x = images(2, **inputs)
        return getattr(T, cls)(config()), lambda model: class_loss(model(pixel_values=x))

    return make


def vision(name, batch=4, size=64, **options):
    def make():
        x = images(batch, size)
        return getattr(V, name)(num_classes=10, **options), lambda model: class_loss(model(x))

    return make


def segmentation(name, batch=2, size=64):
    def make():
        x = images(batch, size)
        net = getattr(V.segmentation, name)(weights=None, weights_backbone=None, num_classes=10)
        return net, lambda model: class_loss(model(x))

    return make


def segments():
    x = images(2)
    labels = torch.randint(0, 10, (2, 64, 64), generator=generator())
    config = T.SegformerConfig(hidden_sizes=[16, 32, 48, 64], depths=[2, 2, 4, 2], num_labels=10, decoder_hidden_size=32)
    return T.SegformerForSemanticSegmentation(config), lambda model: model(pixel_values=x, labels=labels).loss


def big_bird():
    x = ids(2, 128)
    config = T.BigBirdConfig(**{**SIZES, "num_hidden_layers": 6}, **TOKENS, sep_token_id=0, block_size=8, num_random_blocks=1, max_position_embeddings=128)
    return T.BigBirdForMaskedLM(config), lambda model: model(input_ids=x, labels=x).loss


def transformers_zoo():
    text = {
        "bert": ("BertForMaskedLM", lambda: T.BertConfig(**SIZES)),
        "roberta": ("RobertaForMaskedLM", lambda: T.RobertaConfig(**SIZES, max_position_embeddings=80)),
        "albert": ("AlbertForMaskedLM", lambda: T.AlbertConfig(**SIZES, embedding_size=32)),
        "electra": ("ElectraForMaskedLM", lambda: T.ElectraConfig(**SIZES, embedding_size=64)),
        "deberta-v2": ("DebertaV2ForMaskedLM", lambda: T.DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16)),
        "distilbert": ("DistilBertForMaskedLM", lambda: T.DistilBertConfig(vocab_size=200, dim=64, n_layers=12, n_heads=4, hidden_dim=256)),
        "mpnet": ("MPNetForMaskedLM", lambda: T.MPNetConfig(**SIZES, max_position_embeddings=80)),
        "modernbert": ("ModernBertForMaskedLM", lambda: T.ModernBertConfig(**{**SIZES, **TOKENS}, cls_token_id=0, sep_token_id=0, attn_implementation="eager")),
        "gpt2": ("GPT2LMHeadModel", lambda: T.GPT2Config(n_embd=64, n_layer=12, n_head=4, vocab_size=200, n_positions=64, **TOKENS)),
        "gpt-neo": ("GPTNeoForCausalLM", lambda: T.GPTNeoConfig(hidden_size=64, num_layers=12, num_heads=4, vocab_size=200, attention_types=[[["global", "local"], 6]], window_size=16, max_position_embeddings=64, **TOKENS)),
        "gpt-neox": ("GPTNeoXForCausalLM", lambda: T.GPTNeoXConfig(**SIZES, **TOKENS)),
        "opt": ("OPTForCausalLM", lambda: T.OPTConfig(hidden_size=64, num_hidden_layers=12, num_attention_heads=4, ffn_dim=256, vocab_size=200, word_embed_proj_dim=64, **TOKENS)),
        "bloom": ("BloomForCausalLM", lambda: T.BloomConfig(hidden_size=64, n_layer=12, n_head=4, vocab_size=200, **TOKENS)),
        "llama": ("LlamaForCausalLM", lambda: T.LlamaConfig(**SIZES, **TOKENS, num_key_value_heads=2)),
        "mistral": ("MistralForCausalLM", lambda: T.MistralConfig(**SIZES, **TOKENS, num_key_value_heads=2, sliding_window=16)),
        "qwen2": ("Qwen2ForCausalLM", lambda: T.Qwen2Config(**SIZES, **TOKENS, num_key_value_heads=2)),
        "qwen3": ("Qwen3ForCausalLM", lambda: T.Qwen3Config(**SIZES, **TOKENS, num_key_value_heads=2, head_dim=16)),
        "gemma2": ("Gemma2ForCausalLM", lambda: T.Gemma2Config(**SIZES, **TOKENS, num_key_value_heads=2, head_dim=16, sliding_window=16)),
        "phi": ("PhiForCausalLM", lambda: T.PhiConfig(**SIZES, **TOKENS)),
        "olmo": ("OlmoForCausalLM", lambda: T.OlmoConfig(**SIZES, **TOKENS)),
        "falcon": ("FalconForCausalLM", lambda: T.FalconConfig(hidden_size=64, num_hidden_layers=12, num_attention_heads=4, vocab_size=200, **TOKENS)),
        "mixtral": ("MixtralForCausalLM", lambda: T.MixtralConfig(**SIZES, **TOKENS, num_key_value_heads=2, num_local_experts=4)),
        "qwen2-moe": ("Qwen2MoeForCausalLM", lambda: T.Qwen2MoeConfig(**SIZES, **TOKENS, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)),
        "mamba": ("MambaForCausalLM", lambda: T.MambaConfig(hidden_size=64, num_hidden_layers=12, vocab_size=200, state_size=8, **TOKENS)),
        "mamba2": ("Mamba2ForCausalLM", lambda: T.Mamba2Config(hidden_size=64, num_hidden_layers=6, vocab_size=200, state_size=8, num_heads=8, head_dim=16, n_groups=1, chunk_size=16, **TOKENS)),
        "rwkv": ("RwkvForCausalLM", lambda: T.RwkvConfig(hidden_size=64, num_hidden_layers=6, vocab_size=200, context_length=64, **TOKENS)),
        "recurrent-gemma": ("RecurrentGemmaForCausalLM", lambda: T.RecurrentGemmaConfig(**SIZES, **TOKENS, num_key_value_heads=2, head_dim=16, lru_width=64, attention_window_size=16)),
        "jamba": ("JambaForCausalLM", lambda: T.JambaConfig(**{**SIZES, **TOKENS, "num_hidden_layers": 8}, num_key_value_heads=2, num_experts=4, mamba_d_state=8, use_mamba_kernels=False)),
        "gpt-oss": ("GptOssForCausalLM", lambda: T.GptOssConfig(**SIZES, **TOKENS, num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=16)),
        "deepseek-v3": ("DeepseekV3ForCausalLM", lambda: T.DeepseekV3Config(**SIZES, **TOKENS, moe_intermediate_size=64, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=1, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, first_k_dense_replace=2)),
        "fnet": ("FNetForMaskedLM", lambda: T.FNetConfig(hidden_size=64, num_hidden_layers=12, intermediate_size=256, vocab_size=200, max_position_embeddings=64)),
        "longformer": ("LongformerForMaskedLM", lambda: T.LongformerConfig(**SIZES, attention_window=16, max_position_embeddings=80, **TOKENS)),
        "xlnet": ("XLNetLMHeadModel", lambda: T.XLNetConfig(vocab_size=200, d_model=64, n_layer=12, n_head=4, d_inner=256, **TOKENS)),
        "t5": ("T5ForConditionalGeneration", lambda: T.T5Config(d_model=64, d_ff=256, num_layers=6, num_heads=4, d_kv=16, vocab_size=200, decoder_start_token_id=0)),
        "bart": ("BartForConditionalGeneration", lambda: T.BartConfig(d_model=64, encoder_layers=6, decoder_layers=6, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, vocab_size=200, decoder_start_token_id=0, forced_eos_token_id=None, **TOKENS)),
    }
    zoo = {name: language_model(cls, config) for name, (cls, config) in text.items()}
    zoo["vit"] = image_model("ViTForImageClassification", lambda: T.ViTConfig(**IMAGE), size=64)
    zoo["big-bird"] = big_bird
    zoo["deit"] = image_model("DeiTForImageClassification", lambda: T.DeiTConfig(**IMAGE), size=64)
    zoo["beit"] = image_model("BeitForImageClassification", lambda: T.BeitConfig(**IMAGE), size=64)
    zoo["segformer"] = image_model(
        "SegformerForImageClassification",
        lambda: T.SegformerConfig(hidden_sizes=[16, 32, 48, 64], depths=[2, 2, 4, 2], num_labels=10, decoder_hidden_size=32),
        size=64,
    )

    zoo["segformer (segmentation)"] = segments
    zoo["dinov2"] = image_model("Dinov2ForImageClassification", lambda: T.Dinov2Config(hidden_size=64, num_hidden_layers=12, num_attention_heads=4, image_size=64, patch_size=8, num_labels=10))
    zoo["swinv2"] = image_model("Swinv2ForImageClassification", lambda: T.Swinv2Config(image_size=64, embed_dim=32, depths=[2, 2, 6], num_heads=[2, 4, 8], window_size=4, num_labels=10))
    zoo["convnextv2"] = image_model("ConvNextV2ForImageClassification", lambda: T.ConvNextV2Config(hidden_sizes=[16, 32, 64, 128], depths=[3, 3, 9, 3], num_labels=10, image_size=64))

    def videomae():
        x = torch.randn(2, 4, 3, 32, 32, generator=generator())
        config = T.VideoMAEConfig(**{**IMAGE, "image_size": 32}, num_frames=4, tubelet_size=2)
        return T.VideoMAEForVideoClassification(config), lambda model: class_loss(model(pixel_values=x))

    def patchtst():
        past, future = torch.randn(8, 128, 4, generator=generator()), torch.randn(8, 16, 4, generator=generator(2))
        config = T.PatchTSTConfig(num_input_channels=4, context_length=128, patch_length=8, stride=8, prediction_length=16, d_model=64, num_attention_heads=4, num_hidden_layers=8, ffn_dim=256)
        return T.PatchTSTForPrediction(config), lambda model: model(past_values=past, future_values=future).loss

    def wav2vec2():
        sound = torch.randn(2, 4000, generator=generator())
        steps = torch.randint(1, 20, (2, 6), generator=generator())
        config = T.Wav2Vec2Config(**{**SIZES, "vocab_size": 20}, conv_dim=(32, 32, 32), conv_stride=(5, 4, 4), conv_kernel=(10, 8, 4), num_feat_extract_layers=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_length=2, ctc_zero_infinity=True)
        return T.Wav2Vec2ForCTC(config), lambda model: model(sound, labels=steps).loss

    def whisper():
        spectrum = torch.randn(2, 16, 128, generator=generator())
        words = ids(2, 32)
        config = T.WhisperConfig(vocab_size=200, d_model=64, encoder_layers=6, decoder_layers=6, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, num_mel_bins=16, max_source_positions=64, max_target_positions=64, decoder_start_token_id=0, **TOKENS)
        return T.WhisperForConditionalGeneration(config), lambda model: model(input_features=spectrum, labels=words).loss

    def clip():
        words, pictures = ids(), images(2)
        config = T.CLIPConfig(text_config={**SIZES, "max_position_embeddings": 64, **TOKENS}, vision_config=IMAGE, projection_dim=32)
        return T.CLIPModel(config), lambda model: model(input_ids=words, pixel_values=pictures, return_loss=True).loss

    zoo.update({"videomae": videomae, "patchtst": patchtst})
    zoo.update({"wav2vec2": wav2vec2, "whisper": whisper, "clip": clip})
    return zoo


def torchvision_zoo():
    zoo = {
        name.replace("_", "-"): vision(name)
        for name in ["densenet121", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "swin_t", "shufflenet_v2_x1_0", "regnet_y_400mf", "mnasnet1_0", "squeezenet1_1"]
    }
    # With fewer samples, the weight gradient of one convolution is most of a step.
    zoo["resnet18"] = vision("resnet18", batch=32)
    zoo["resnet50"] = vision("resnet50", batch=16)
    zoo["convnext-tiny"] = vision("convnext_tiny", batch=8)
    zoo["VisionTransformer"] = vision("VisionTransformer", image_size=64, patch_size=8, num_layers=12, num_heads=4, hidden_dim=64, mlp_dim=256)
    zoo["fcn-resnet50"] = segmentation("fcn_resnet50")
    zoo["deeplabv3"] = segmentation("deeplabv3_mobilenet_v3_large", batch=4, size=128)
    zoo["lraspp"] = segmentation("lraspp_mobilenet_v3_large")
    return zoo


class Graph(nn.Module):
    """Graph convolutions with a sparse adjacency."""

    def __init__(self, layers=12, width=64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, adjacency, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.dropout(F.relu(norm(torch.sparse.mm(adjacency, layer(x)))), 0.1, self.training)
        return x


class Deformable(nn.Module):
    """Deformable convolutions of torchvision, whose ops are built for LibTorch's stable ABI."""

    def __init__(self, layers=8, width=16):
        super().__init__()
        self.offsets = nn.ModuleList(nn.Conv2d(width, 18, 3, padding=1) for _ in range(layers))
        self.layers = nn.ModuleList(torchvision.ops.DeformConv2d(width, width, 3, padding=1) for _ in range(layers))

    def forward(self, x):
        for offset, layer in zip(self.offsets, self.layers):
            x = x + F.silu(layer(x, offset(x)))
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
        x = torch.randn(2, 64, 64, generator=generator())
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        return nn.TransformerEncoder(layer, 12), lambda model: model(x).square().mean()

    def translation():
        x = torch.randn(2, 64, 64, generator=generator())
        return nn.Transformer(64, 4, 6, 6, 256, batch_first=True), lambda model: model(x, x[:, :32]).square().mean()

    def recurrent(cls):
        x = torch.randn(16, 60, 32, generator=generator())
        return cls(32, 64, 2, batch_first=True, dropout=0.1), lambda model: model(x)[0].square().mean()

    def deformable():
        x = images(4, 32, channels=16)
        return Deformable(), lambda model: model(x).square().mean()

    def unet():
        x = images(4, 32)
        return UNet(), lambda model: class_loss(model(x))

    return {
        "nn.TransformerEncoder": encoder,
        "nn.Transformer": translation,
        "nn.LSTM": lambda: recurrent(nn.LSTM),
        "nn.GRU": lambda: recurrent(nn.GRU),
        "U-Net": unet,
        **({"deformable convolutions": deformable} if V else {}),
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


# One of each kind.
FEW = ["bert", "albert", "gpt2", "llama", "mixtral", "mamba", "t5", "vit", "swinv2", "wav2vec2", "whisper", "clip", "densenet121", "mobilenet-v3-large", "deeplabv3", "lraspp", "nn.LSTM", "U-Net", "graph convolutions, sparse"]

# The least share of its activations that a step can take, and what takes it. Where eviction on demand reaches less, it does.
ON_DEMAND = "least of a plan"
GRADIENT = "backward of one convolution: its weight's gradient"
FLOORS = {
    "opt": (0.3, ON_DEMAND),
    "bloom": (0.3, ON_DEMAND),
    "segformer": (0.32, ON_DEMAND),
    "segformer (segmentation)": (0.33, "log_softmax over all pixels"),
    "mobilenet-v2": (0.32, ON_DEMAND),
    "mobilenet-v3-large": (0.38, "backward of the classifier: its weight's gradient"),
    "mnasnet1-0": (0.32, ON_DEMAND),
    "swin-t": (0.32, ON_DEMAND),
    "convnext-tiny": (0.35, ON_DEMAND),
    "resnet18": (0.55, GRADIENT),
    "resnet50": (0.42, GRADIENT),
    "deeplabv3": (0.49, GRADIENT),
    "shufflenet-v2-x1-0": (0.36, GRADIENT),
    "regnet-y-400mf": (0.52, "backward of one batch norm"),
    "squeezenet1-1": (0.52, "first layer, in backward of its ReLU"),
    "lraspp": (0.32, ON_DEMAND),
    "fcn-resnet50": (0.92, GRADIENT),
    "nn.LSTM": (0.63, "backward of one layer, which is one op"),
    "nn.GRU": (0.55, "backward of its steps over time"),
    "deformable convolutions": (0.6, "backward of one layer: its columns"),
    "U-Net": (0.6, "backward of one convolution, beside the skips that the program holds"),
}

# The first step may be measured beyond the budget: a quarter is close to the least that eviction on demand reaches, which hangs on the
# ops' measured times.
BEYOND_ONCE = ["mamba"]
