//! How the embedded model is made: tokenizer, shape, training.

use super::fit::{self, Settings};
use crate::data::synthetic::{self, Public};
use crate::data::text;
use crate::error::{Error, Result};
use crate::model::init::Preset;
use crate::model::tokenizer::Tokenizer;
use crate::model::{Config, Reduction, Weights, init};
use crate::optim::{Hyper, Schedule};
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, NormalizerWrapper, PostProcessorWrapper, TokenizerBuilder};

/// Ends a text.
const END: &str = "<|endoftext|>";
/// Paragraphs that the tokenizer learns from: the first of those that the model does.
const TOKENIZER_PARAGRAPHS: u64 = 4_000;
/// Paragraphs that the model is trained on, once each.
pub const PARAGRAPHS: u64 = 16_000;
/// Paragraphs that it is measured on.
pub const TEST_PARAGRAPHS: u64 = 500;
const VOCABULARY: usize = 1536;
const SEED: u64 = synthetic::SEED;

/// GPT-2's architecture, small.
fn config() -> Config {
    Config {
        vocab: VOCABULARY,
        positions: 128,
        width: 112,
        layers: 3,
        heads: 4,
        kv_heads: 4,
        head_width: 28,
        inner: 448,
        eos: Some(0),
        ..Preset::Tiny.config()
    }
}

/// Byte-level BPE as GPT-2 has it, trained on public text: the text of `tokenizer.json`.
pub fn tokenizer() -> Result<String> {
    let failed = |e: tokenizers::Error| Error::usage(format!("the tokenizer cannot be trained ({e})"));
    let bytes = ByteLevel::new(false, true, true);
    let mut trainer = BpeTrainerBuilder::new()
        .vocab_size(VOCABULARY)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from(END, true)])
        .build();
    let mut tokenizer = TokenizerBuilder::<BPE, NormalizerWrapper, _, PostProcessorWrapper, _>::new()
        .with_model(BPE::default())
        .with_pre_tokenizer(Some(bytes))
        .with_decoder(Some(bytes))
        .build()
        .map_err(failed)?;
    let text = synthetic::public_text(SEED, Public::Train, TOKENIZER_PARAGRAPHS).replace(END, "");
    tokenizer.train(&mut trainer, text.lines()).map_err(failed)?;
    Ok(tokenizer.to_string(true).map_err(failed)? + "\n")
}

/// The model, trained from scratch on the public text: one pass, AdamW, a linear schedule. `done(step, steps, loss)` is called after each step.
pub fn model(tokenizer: &Tokenizer, mut done: impl FnMut(u32, u32, f64)) -> Result<Weights> {
    let config = config();
    let ids = tokenizer.encode_long(&synthetic::public_text(SEED, Public::Train, PARAGRAPHS))?;
    let windows = text::windows(&ids, config.positions, config.positions)?;
    let settings = Settings {
        epochs: 1,
        batch: 16,
        hyper: Hyper { beta2: 0.99, ..Hyper::new(4e-3, 0.01) },
        schedule: Schedule::Linear { warmup: 0.05 },
        reduction: Reduction::TokenMean,
        seed: SEED,
    };
    let steps = settings.steps(windows.len())?;
    let mut step = 0;
    let each = |loss| {
        step += 1;
        done(step, steps, loss);
    };
    fit::fit(init::random(config, SEED)?, &windows, &settings, each, |_, _| Ok(()))
}

/// What lies beside the model.
pub fn readme(weights: &Weights, public: f64, private: f64, sha256: &str) -> String {
    let Config { vocab, positions, width, layers, heads, .. } = weights.config;
    let parameters = weights.layout.scalars();
    format!(
        "# ferret-mini

The model inside the program (`--model embedded`): GPT-2's architecture, {layers} blocks, {width} wide, {heads} heads, a context of
{positions} tokens, a byte-level BPE of {vocab} tokens, tied embeddings, {parameters} parameters in f32.

It was trained from scratch by this engine on {PARAGRAPHS} paragraphs of the program's own public text, once each. Text and tokenizer
are made from the seed {SEED}; no text is stored. This file, too, is written by the command that makes the model:

```
cargo run --release -- world --rebuild-model
```

The same version of the program gives the same bytes on the same machine, at any number of threads; another version may round differently.

| measured on | perplexity |
|---|---|
| {TEST_PARAGRAPHS} public paragraphs it has not seen, windows of {positions} | {public:.4} |
| 1000 private test records, answers only, before any fine-tuning | {private:.4} |

To measure again: `ferret world --out world --paragraphs {TEST_PARAGRAPHS} --records 1000`, then `ferret eval --model embedded --data`
`world/public-test.txt` or `world/private-test.jsonl`. How it learns and leaks the private records: `ferret world --trial`.

SHA-256 of the tensors: {sha256}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_tokenizer_is_the_one_that_the_recipe_makes() {
        assert_eq!(tokenizer().unwrap(), include_str!("../../../models/ferret-mini/tokenizer.json"));
    }
}
