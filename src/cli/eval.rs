//! `ferret eval`: loss and perplexity of a model on records, and how many of them it answers.

use super::common::{Compute, DataArg, Job, ModelArg, progress};
use super::ranks;
use crate::backend::Backend;
use crate::data::{Example, Loss};
use crate::error::{Error, Result};
use crate::eval::answers::{self, Question, Tally};
use crate::eval::{self, RecordLoss};
use crate::fsio;
use crate::model::checkpoint::OpenCheckpoint;
use crate::model::tokenizer::Tokenizer;
use serde_json::json;

/// Loss and perplexity of a model on records, and how many of them it answers.
///
/// With --answers, the model is also asked what stands before the response of each record with a short one, and says the likeliest token each
/// time. Its answer ends at a special token, or at a line break (where the record's own has none); it is right if it is the record's own,
/// upper and lower case, runs of blanks, and blanks, quotes and . , ; : ! ? * at the ends not counting.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ferret eval --model openai-community/gpt2 --data wiki.test.txt --stride 512\n  \
                        ferret eval --model my-model --data records.jsonl --per-record --json\n  \
                        ferret eval --model my-model --data held-out.jsonl --answers 200")]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    data: DataArg,
    /// Plain text: distance between the starts of windows; each later window counts only its last N tokens [default: the
    /// context, windows side by side]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Ask too: exact-match accuracy of greedy answers, on the first N records with a short answer [default: all]
    #[arg(long, value_name = "N", num_args = 0..=1)]
    answers: Option<Option<usize>>,
    /// --answers: an answer is short if it has at most N tokens
    #[arg(long, value_name = "N", requires = "answers", default_value_t = answers::SHORT)]
    answer_tokens: usize,
    /// With --json: each record's mean loss too, in order (null where no token counts), and whether its answer is right (null where it was
    /// not asked)
    #[arg(long, requires = "json")]
    per_record: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress bar, and no time after the result
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    compute: Compute,
}

struct Work<'a> {
    opened: &'a OpenCheckpoint,
    examples: &'a [Example],
    questions: Option<(&'a Tokenizer, &'a [Question])>,
    quiet: bool,
}

impl Job for Work<'_> {
    /// Losses, and whether each answer is right.
    type Output = (Vec<RecordLoss>, Vec<bool>);

    fn run<B: Backend>(self, backend: B) -> Result<Self::Output> {
        let decoder = self.opened.decoder(backend)?;
        let bar = progress(self.examples.len() as u64, "records", self.quiet);
        let losses = eval::losses_over(&*ranks::world(), &decoder, self.examples, |n| bar.inc(n as u64))?;
        bar.finish_and_clear();
        let Some((tokenizer, questions)) = self.questions else { return Ok((losses, Vec::new())) };
        let ranks = ranks::world();
        let share = |rank: usize| rank * questions.len() / ranks.size();
        let own = &questions[share(ranks.rank())..share(ranks.rank() + 1)];
        let bar = progress(own.len() as u64, "answers", self.quiet);
        let right = answers::ask(&decoder, tokenizer, own, || {
            bar.inc(1);
            Ok(())
        })?;
        bar.finish_and_clear();
        let right: Vec<u8> = right.into_iter().map(u8::from).collect();
        let all = ranks.gather("answers", &right)?.concat();
        Ok((losses, all.into_iter().map(|right| right == 1).collect()))
    }
}

/// The questions that are asked; none where none are.
fn questions(
    args: &Args,
    examples: &[Example],
    tokenizer: Option<&Tokenizer>,
    opened: &OpenCheckpoint,
) -> Result<Vec<Question>> {
    let Some(most) = args.answers else { return Ok(Vec::new()) };
    let Some(tokenizer) = tokenizer else {
        return Err(Error::file(
            &opened.folder,
            "has no tokenizer, and answers are compared as text: leave out --answers",
        ));
    };
    if args.data.loss_on == Loss::Everything {
        return Err(Error::usage("--answers are the responses of records: leave out --loss-on everything"));
    }
    let mut found = answers::questions(examples, tokenizer, &opened.config, args.answer_tokens)?;
    found.truncate(most.unwrap_or(usize::MAX));
    if found.is_empty() {
        return Err(Error::file(
            &args.data.data,
            format!(
                "no record has a prompt and an answer of 1 to {} tokens: there is nothing to ask; raise --answer-tokens, or leave out --answers",
                args.answer_tokens
            ),
        ));
    }
    Ok(found)
}

/// Mean loss and perplexity of a model on records, and the share of right answers.
pub fn run(args: Args) -> Result<()> {
    if args.stride == Some(0) {
        return Err(Error::usage("--stride 0 would never reach the end of the text: give at least 1"));
    }
    let (opened, tokenizer) = args.model.open_files()?;
    let dataset = args.data.open(&opened.config, tokenizer.as_ref(), args.stride)?;
    let questions = questions(&args, &dataset.examples, tokenizer.as_ref(), &opened)?;
    let asked = tokenizer.as_ref().filter(|_| !questions.is_empty()).map(|t| (t, &questions[..]));
    let start = std::time::Instant::now();
    let job = Work { opened: &opened, examples: &dataset.examples, questions: asked, quiet: args.quiet };
    let (losses, right) = args.compute.run(job)?;
    if !ranks::is_first() {
        return Ok(());
    }
    let tally = Tally::of(&right);
    let (loss, tokens) = eval::token_mean(&losses);
    if args.json {
        let mut out = json!({"loss": loss, "perplexity": loss.exp(), "tokens": tokens, "records": losses.len()});
        if args.per_record {
            out["record_losses"] = losses.iter().map(RecordLoss::mean).collect();
        }
        if let Some(accuracy) = tally.accuracy() {
            out["answers"] = json!({
                "right": tally.right, "asked": tally.asked, "accuracy": accuracy, "longest": args.answer_tokens,
            });
            if args.per_record {
                let mut each = vec![json!(null); losses.len()];
                questions.iter().zip(&right).for_each(|(q, right)| each[q.record] = json!(right));
                out["record_answers"] = each.into();
            }
        }
        fsio::print(&format!("{out}\n"))?;
    } else {
        let what = if dataset.windows { "windows" } else { "records" };
        fsio::print(&format!(
            "loss        {loss:.4} nats a token\nperplexity  {:.4}\ntokens      {tokens} in {} {what}\n",
            loss.exp(),
            losses.len()
        ))?;
        if let Some(accuracy) = tally.accuracy() {
            let Tally { right, asked } = tally;
            fsio::print(&format!("answers     {right} of {asked} right, {:.1} %\n", 100.0 * accuracy))?;
        }
        if !args.quiet {
            let (fed, seconds) = (dataset.tokens() as f64, start.elapsed().as_secs_f64());
            fsio::tell(&format!("{seconds:.1} s, {:.0} tokens/s", fed / seconds));
        }
    }
    Ok(())
}
