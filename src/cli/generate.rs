//! `ferret generate`: text from a model, as it comes.

use super::common::{Compute, Job, ModelArg, progress};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::fsio;
use crate::model::checkpoint::OpenCheckpoint;
use crate::model::generate::{Sampling, generate};
use crate::model::tokenizer::{Message, Tokenizer};
use serde_json::json;

/// Text from a model, token by token as it comes.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ferret generate --model openai-community/gpt2 --prompt \"Once upon a time\" --temperature 0.8\n  \
                        ferret generate --model sorter --prompt-tokens 2,0,1 --max-tokens 3 --temperature 0"
)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Text to go on from
    #[arg(long, required_unless_present = "prompt_tokens", conflicts_with = "prompt_tokens")]
    prompt: Option<String>,
    /// The prompt is what a user says: put it into the model's chat template
    #[arg(long, requires = "prompt")]
    chat: bool,
    /// Token ids to go on from, for models without a tokenizer
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    prompt_tokens: Option<Vec<u32>>,
    /// How many tokens to make; text ends earlier at the model's end-of-text token, and at the end of its context
    #[arg(long, short = 'n', alias = "max-new-tokens", value_name = "N", default_value_t = 100)]
    max_tokens: usize,
    /// 0 takes the likeliest token each time; 1 samples from the model
    #[arg(long, default_value_t = 1.0)]
    temperature: f64,
    /// Sample among the K likeliest tokens only; 0: all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Sample among the likeliest tokens that together have probability P only
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Recompute the whole text for every token instead of caching keys and values (slow; to check the cache)
    #[arg(long)]
    no_cache: bool,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
    /// No progress bar with --json, and no rate after the text
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    compute: Compute,
}

struct Work<'a> {
    opened: &'a OpenCheckpoint,
    prompt: &'a [u32],
    args: &'a Args,
    tokenizer: Option<&'a Tokenizer>,
}

impl Job for Work<'_> {
    /// The tokens, and the seconds from the first to the last of them.
    type Output = (Vec<u32>, f64);

    fn run<B: Backend>(self, backend: B) -> Result<Self::Output> {
        let decoder = self.opened.decoder(backend)?;
        let args = self.args;
        let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p };
        let mut stream = self.tokenizer.map(Tokenizer::stream);
        let mut tokens = Vec::new();
        let mut first = None;
        // Text shows its own progress as it comes.
        let bar = progress(args.max_tokens as u64, "tokens", args.quiet || !args.json);
        generate(&decoder, self.prompt, args.max_tokens, &sampling, args.seed, !args.no_cache, |id| {
            first.get_or_insert_with(std::time::Instant::now);
            if !args.json {
                match &mut stream {
                    Some(stream) => fsio::print(&stream.push(id)?)?,
                    None if tokens.is_empty() => fsio::print(&id.to_string())?,
                    None => fsio::print(&format!(",{id}"))?,
                }
            }
            tokens.push(id);
            bar.inc(1);
            // A prompt given as tokens is a sequence, not a text: it has no end but the count.
            Ok(args.prompt.is_none() || decoder.config.eos != Some(id))
        })?;
        bar.finish_and_clear();
        if !args.json {
            if let Some(stream) = stream {
                fsio::print(&stream.finish()?)?;
            }
            fsio::print("\n")?;
        }
        Ok((tokens, first.map_or(0.0, |t| t.elapsed().as_secs_f64())))
    }
}

/// Continue a prompt, printing tokens as they come.
pub fn run(args: Args) -> Result<()> {
    let (opened, tokenizer) = args.model.open_files()?;
    let prompt = match (&args.prompt, &args.prompt_tokens) {
        (Some(text), _) => match &tokenizer {
            Some(tokenizer) => prompt_tokens(tokenizer, text, args.chat)?,
            None => {
                let what = "has no tokenizer, so --prompt cannot be read: give --prompt-tokens";
                return Err(Error::file(&opened.folder, what));
            }
        },
        (None, tokens) => tokens.clone().unwrap_or_default(),
    };
    if !args.json && args.prompt.is_some() && !args.chat {
        fsio::print(args.prompt.as_deref().unwrap_or_default())?;
    }
    let (context, eos) = (opened.config.positions, opened.config.eos);
    let work = Work { opened: &opened, prompt: &prompt, args: &args, tokenizer: tokenizer.as_ref() };
    let (tokens, seconds) = args.compute.run(work)?;
    let ended = args.prompt.is_some() && tokens.last().copied() == eos;
    if tokens.len() < args.max_tokens && !ended {
        fsio::tell(&format!("note: stopped at the end of the model's context of {context} tokens"));
    }
    // The first token's time is the prompt's.
    let rate = (tokens.len().saturating_sub(1)) as f64 / seconds;
    if args.json {
        let text = tokenizer.as_ref().map(|t| t.decode(&tokens)).transpose()?;
        let out = json!({"tokens": tokens, "text": text, "tokens_per_second": rate.is_finite().then_some(rate)});
        fsio::print(&format!("{out}\n"))?;
    } else if rate.is_finite() && !args.quiet {
        fsio::tell(&format!("{} tokens, {rate:.1} tokens/s", tokens.len()));
    }
    Ok(())
}

/// The tokens of a prompt: as text with what belongs before every text, or as a user's turn and the beginning of the model's.
fn prompt_tokens(tokenizer: &Tokenizer, text: &str, chat: bool) -> Result<Vec<u32>> {
    if !chat {
        return Ok([tokenizer.beginning(), &tokenizer.encode(text)?].concat());
    }
    let Some(template) = tokenizer.chat() else {
        return Err(Error::file(tokenizer.path(), "its folder has no chat template: leave out --chat"));
    };
    let turn = Message { role: "user".into(), content: text.into() };
    tokenizer.encode(&template.render(&[turn], true).map_err(Error::Usage)?)
}
