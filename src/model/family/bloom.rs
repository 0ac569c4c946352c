//! BLOOM: layer norms with one more over the embedding, scores that fall with distance (ALiBi), a bias everywhere, and queries, keys
//! and values stored head by head.

use super::keys::{Keys, MAX_LAYERS, MAX_SIZE};
use super::{Family, FamilyRef, Names, gpt2};
use crate::error::{Error, Result};
use crate::model::config::{Config, Order, Position, Qkv};
use crate::model::layout::{Module, ParamSpec};
use serde_json::{Map, Value, json};

/// BLOOM as a [`Family`].
pub struct Bloom;

/// What BLOOM was trained on; nothing in it ends there.
const POSITIONS: usize = 2048;

impl Family for Bloom {
    fn called(&self) -> [&'static str; 2] {
        ["bloom", "Bloom"]
    }

    fn read(&self, keys: &Keys, notes: &mut Vec<String>) -> Result<Config> {
        keys.refuse_if_set(&["apply_residual_connection_post_layernorm", "rope_scaling", "rope_parameters"])?;
        let width = keys.size(&["n_embed", "hidden_size"], 64, MAX_SIZE)?;
        let layers = keys.size(&["n_layer", "num_hidden_layers"], 2, MAX_LAYERS)?;
        let heads = keys.size(&["n_head", "num_attention_heads"], 8, MAX_SIZE)?;
        if width % heads != 0 {
            let what =
                format!("hidden_size {width} is not a multiple of n_head {heads}: the heads cannot share the width");
            return Err(Error::file(keys.path, what));
        }
        let vocab = keys.size(&["vocab_size"], 250_880, MAX_SIZE)?;
        keys.note_rounding("pretraining_tp", notes)?;
        keys.note_dropout(&["hidden_dropout", "attention_dropout"], notes)?;
        Ok(Config {
            vocab,
            positions: keys.size(&["seq_length"], POSITIONS as u64, MAX_SIZE)?,
            norm_epsilon: keys.positive("layer_norm_epsilon", 1e-5)?,
            tied: keys.flag("tie_word_embeddings", true)?,
            init_std: keys.init_std()?,
            eos: keys.eos(Some(2), vocab, notes)?,
            adapter: None,
            ..shape(layers, heads, width)
        })
    }

    fn write(&self, config: &Config) -> Map<String, Value> {
        super::object(json!({
            "apply_residual_connection_post_layernorm": false,
            "attention_dropout": 0.0,
            "bos_token_id": 1,
            "eos_token_id": config.eos,
            "hidden_dropout": 0.0,
            "hidden_size": config.width,
            "initializer_range": config.init_std,
            "layer_norm_epsilon": config.norm_epsilon,
            "n_head": config.heads,
            "n_layer": config.layers,
            "seq_length": config.positions,
            "tie_word_embeddings": config.tied,
            "use_cache": true,
            "vocab_size": config.vocab,
        }))
    }

    fn names(&self) -> Names {
        Names {
            prefix: "transformer.",
            before: &[(Module::Tokens, "word_embeddings"), (Module::EmbeddingNorm, "word_embeddings_layernorm")],
            blocks: "h",
            block: &[
                (Module::Norm1, "input_layernorm"),
                (Module::Qkv, "self_attention.query_key_value"),
                (Module::AttentionOut, "self_attention.dense"),
                (Module::Norm2, "post_attention_layernorm"),
                (Module::MlpIn, "mlp.dense_h_to_4h"),
                (Module::MlpOut, "mlp.dense_4h_to_h"),
            ],
            norm: "ln_f",
            head: "lm_head",
        }
    }

    fn is_buffer(&self, _: &str) -> bool {
        false
    }

    /// (head, q k v, column) in the file, (q k v, head, column) in memory, so that attention sees three blocks of columns.
    fn row_order(&self, config: &Config, spec: &ParamSpec) -> Option<Vec<usize>> {
        let (heads, width) = (config.heads, config.head_width);
        let order = (0..3).flat_map(|part| {
            (0..heads).flat_map(move |head| (0..width).map(move |column| (head * 3 + part) * width + column))
        });
        (spec.module == Module::Qkv).then(|| order.collect())
    }
}

/// BLOOM of these sizes, all else as BigScience's.
pub fn shape(layers: usize, heads: usize, width: usize) -> Config {
    Config {
        family: FamilyRef(&Bloom),
        vocab: 250_880,
        positions: POSITIONS,
        position: Position::Alibi,
        qkv: Qkv::PerHead,
        order: Order::OutIn,
        embedding_norm: true,
        init_narrow: false,
        eos: Some(2),
        ..gpt2::shape(layers, heads, width)
    }
}
