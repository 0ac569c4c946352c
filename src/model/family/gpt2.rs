//! GPT-2: a layer norm before each half of a block, learned positions, `[in, out]` weights (its Conv1D), a bias everywhere.

use super::keys::{Keys, MAX_LAYERS, MAX_SIZE};
use super::{Family, FamilyRef, Names};
use crate::error::{Error, Result};
use crate::model::config::{Activation, Biases, Config, Mlp, Norm, Order, Position, Qkv};
use crate::model::layout::Module;
use serde_json::{Map, Value, json};

/// GPT-2 as a [`Family`].
pub struct Gpt2;

impl Family for Gpt2 {
    fn called(&self) -> [&'static str; 2] {
        ["gpt2", "GPT2"]
    }

    fn class(&self) -> String {
        "GPT2LMHeadModel".into()
    }

    fn read(&self, keys: &Keys, notes: &mut Vec<String>) -> Result<Config> {
        keys.refuse_if_set(&["rope_scaling", "rope_parameters"])?;
        let width = keys.size(&["n_embd", "hidden_size"], 768, MAX_SIZE)?;
        let positions = keys.size(&["n_positions", "max_position_embeddings", "n_ctx"], 1024, MAX_SIZE)?;
        if let (Some(n), Some(_)) = (keys.integer("n_ctx")?, keys.integer("n_positions")?)
            && n != positions as u64
        {
            notes.push(format!("n_ctx is {n} and n_positions {positions}: n_positions counts, as in transformers"));
        }
        let layers = keys.size(&["n_layer", "num_hidden_layers"], 12, MAX_LAYERS)?;
        let heads = keys.size(&["n_head", "num_attention_heads"], 12, MAX_SIZE)?;
        let vocab = keys.size(&["vocab_size"], 50257, MAX_SIZE)?;
        let inner = keys.size(&["n_inner"], 4 * width as u64, MAX_SIZE)?;
        if width % heads != 0 {
            let what = format!("n_embd {width} is not a multiple of n_head {heads}: the heads cannot share the width");
            return Err(Error::file(keys.path, what));
        }
        let activation = keys.activation("activation_function", "gelu_new")?;
        let norm_epsilon = keys.positive("layer_norm_epsilon", 1e-5)?;
        let init_std = keys.init_std()?;
        if keys.flag("reorder_and_upcast_attn", false)? {
            notes.push(
                "reorder_and_upcast_attn is set: it concerns half precision, and all arithmetic here is f32".into(),
            );
        }
        keys.note_dropout(&["resid_pdrop", "embd_pdrop", "attn_pdrop"], notes)?;
        Ok(Config {
            vocab,
            positions,
            inner,
            norm_epsilon,
            mlp: Mlp::Plain(activation),
            tied: keys.flag("tie_word_embeddings", true)?,
            scale_by_width: keys.flag("scale_attn_weights", true)?,
            scale_by_layer: keys.flag("scale_attn_by_inverse_layer_idx", false)?,
            init_std,
            eos: keys.eos(Some(50256), vocab, notes)?,
            adapter: None,
            ..shape(layers, heads, width)
        })
    }

    fn write(&self, config: &Config) -> Map<String, Value> {
        let activation = match config.mlp.activation() {
            Activation::GeluTanh => "gelu_new",
            Activation::GeluErf => "gelu",
            Activation::Silu => "silu",
        };
        let inner = if config.inner == 4 * config.width { Value::Null } else { json!(config.inner) };
        let value = json!({
            "activation_function": activation,
            "attn_pdrop": 0.0,
            "bos_token_id": config.eos,
            "embd_pdrop": 0.0,
            "eos_token_id": config.eos,
            "initializer_range": config.init_std,
            "layer_norm_epsilon": config.norm_epsilon,
            "n_ctx": config.positions,
            "n_embd": config.width,
            "n_head": config.heads,
            "n_inner": inner,
            "n_layer": config.layers,
            "n_positions": config.positions,
            "reorder_and_upcast_attn": false,
            "resid_pdrop": 0.0,
            "scale_attn_by_inverse_layer_idx": config.scale_by_layer,
            "scale_attn_weights": config.scale_by_width,
            "tie_word_embeddings": config.tied,
            "use_cache": true,
            "vocab_size": config.vocab,
        });
        super::object(value)
    }

    fn names(&self) -> Names {
        Names {
            prefix: "transformer.",
            before: &[(Module::Tokens, "wte"), (Module::Positions, "wpe")],
            blocks: "h",
            block: &[
                (Module::Norm1, "ln_1"),
                (Module::Qkv, "attn.c_attn"),
                (Module::AttentionOut, "attn.c_proj"),
                (Module::Norm2, "ln_2"),
                (Module::MlpIn, "mlp.c_fc"),
                (Module::MlpOut, "mlp.c_proj"),
            ],
            norm: "ln_f",
            head: "lm_head",
        }
    }

    /// A causal mask that old checkpoints carry along: `attn.bias`, `attn.masked_bias`.
    fn is_buffer(&self, name: &str) -> bool {
        name.strip_prefix("h.").and_then(|rest| rest.split_once('.')).is_some_and(|(layer, rest)| {
            layer.parse::<usize>().is_ok() && matches!(rest, "attn.bias" | "attn.masked_bias")
        })
    }

    /// Files have been written in the layout's order since the first version, and a replayed file comes out byte for byte.
    fn sorts_files(&self) -> bool {
        false
    }
}

/// GPT-2 of these sizes, all else as OpenAI's.
pub fn shape(layers: usize, heads: usize, width: usize) -> Config {
    Config {
        family: FamilyRef(&Gpt2),
        vocab: 50257,
        positions: 1024,
        width,
        layers,
        heads,
        kv_heads: heads,
        head_width: width / heads.max(1),
        inner: 4 * width,
        norm: Norm::Layer,
        norm_epsilon: 1e-5,
        position: Position::Learned,
        qkv: Qkv::Fused,
        mlp: Mlp::Plain(Activation::GeluTanh),
        biases: Biases::ALL,
        order: Order::InOut,
        embedding_norm: false,
        head_norm: false,
        tied: true,
        scale_by_width: true,
        scale_by_layer: false,
        window: None,
        init_std: 0.02,
        init_narrow: true,
        eos: Some(50256),
        adapter: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Layout;
    use crate::model::family::{ParsedConfig, parse};
    use std::path::Path;

    fn read(text: &str) -> Result<ParsedConfig> {
        parse(text, Path::new("config.json"))
    }

    fn with(key: &str, value: &str) -> String {
        format!(
            r#"{{"model_type":"gpt2","n_embd":8,"n_layer":2,"n_head":2,"n_positions":16,"vocab_size":11,"{key}":{value}}}"#
        )
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = read(r#"{"model_type":"gpt2"}"#).unwrap().config;
        assert_eq!(config.scalars(), 124_439_808);
        assert_eq!((config.positions, config.inner, config.eos), (1024, 3072, Some(50256)));
        assert!(config.tied && config.scale_by_width && !config.scale_by_layer);
        assert_eq!(read(&config.family.to_json(&config)).unwrap().config, config);
    }

    #[test]
    fn every_number_changing_key_is_honoured() {
        let base = read(&with("x", "0")).unwrap().config;
        let config = |key: &str, value: &str| read(&with(key, value)).unwrap().config;
        assert_eq!(config("n_inner", "20"), Config { inner: 20, ..base.clone() });
        assert_eq!(config("layer_norm_epsilon", "1e-6"), Config { norm_epsilon: 1e-6, ..base.clone() });
        assert_eq!(
            config("activation_function", "\"gelu\""),
            Config { mlp: Mlp::Plain(Activation::GeluErf), ..base.clone() }
        );
        assert_eq!(config("tie_word_embeddings", "false"), Config { tied: false, ..base.clone() });
        assert_eq!(config("scale_attn_weights", "false"), Config { scale_by_width: false, ..base.clone() });
        assert_eq!(config("scale_attn_by_inverse_layer_idx", "true"), Config { scale_by_layer: true, ..base.clone() });
        assert_eq!(config("eos_token_id", "3"), Config { eos: Some(3), ..base.clone() });
        assert_eq!(config("eos_token_id", "[4, 5]"), Config { eos: Some(4), ..base.clone() });
        assert_eq!(config("eos_token_id", "null"), base);
        for c in [base, config("tie_word_embeddings", "false"), config("n_inner", "20")] {
            assert_eq!(c.scalars(), Layout::new(&c).scalars() as u128);
            assert_eq!(read(&c.family.to_json(&c)).unwrap().config, c);
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (key, value, says) in [
            ("activation_function", "\"relu\"", "\"relu\""),
            ("add_cross_attention", "true", "add_cross_attention"),
            ("quantization_config", "{\"bits\":4}", "quantization_config"),
            ("pruned_heads", "{\"0\":[1]}", "pruned_heads"),
            ("hidden_size", "9", "hidden_size is 9"),
            ("n_inner", "0", "n_inner is 0"),
            ("n_inner", "1e3", "whole number"),
            ("n_inner", "1152921504606846976", "between 1 and"),
            ("layer_norm_epsilon", "\"a\"", "a number"),
            ("layer_norm_epsilon", "0", "above 0"),
            ("scale_attn_weights", "1", "true or false"),
        ] {
            let error = read(&with(key, value)).unwrap_err().to_string();
            assert!(error.contains(says), "{key}: {error}");
        }
        let other = read(r#"{"model_type":"mamba"}"#).unwrap_err().to_string();
        assert!(
            other.contains("\"mamba\"") && other.contains("gpt2, llama, mistral, qwen2, qwen3, bloom, phi3 can"),
            "{other}"
        );
        let heads = read(r#"{"model_type":"gpt2","n_head":5}"#).unwrap_err().to_string();
        assert!(heads.contains("768 is not a multiple of n_head 5"), "{heads}");
        let huge = r#"{"model_type":"gpt2","n_embd":16777216,"n_head":1,"n_layer":4096,"n_inner":16777216}"#;
        assert!(read(huge).unwrap_err().to_string().contains("parameters"));
    }

    #[test]
    fn dropout_is_reported() {
        assert!(read(&with("resid_pdrop", "0.1")).unwrap().notes[0].contains("resid_pdrop 0.1"));
        assert!(read(&with("resid_pdrop", "0.0")).unwrap().notes.is_empty());
    }

    #[test]
    fn masks_are_told_from_parameters() {
        let family = FamilyRef(&Gpt2);
        assert_eq!(family.tensor_name("transformer.h.3.attn.bias"), None);
        assert_eq!(family.tensor_name("h.11.attn.masked_bias"), None);
        assert_eq!(family.tensor_name("h.0.attn.c_attn.bias"), Some(("h.0.attn.c_attn.bias", false)));
        assert_eq!(family.tensor_name("transformer.wte.weight"), Some(("wte.weight", true)));
        assert_eq!(family.file_name("lm_head.weight", true), "lm_head.weight");
        assert_eq!(family.file_name("wte.weight", true), "transformer.wte.weight");
    }
}
