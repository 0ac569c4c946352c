//! Training: for every step in which a group fires, one inner product a fired group, one release, one update.
//!
//! The plan comes first and touches no data: silent steps cost nothing but AdamW's idle arithmetic. A fired step runs forward once
//! and backward down to the lowest fired block. All that comes back from a device in a step is one number a fired group, and the loss.

use super::plan::{Message, Plan};
use super::settings::{BatchPer, Engine, Payload, Release};
use super::transcript::{Releases, Transcript, on_grid};
use crate::backend::Backend;
use crate::error::Result;
use crate::grad::{GroupDirection, GroupDot, Sum};
use crate::method::crew::Totals;
use crate::method::list::Record;
use crate::method::run::Step;
use crate::method::tally::{Private, Sums};
use crate::method::trainer::{self, Trainable};
use crate::method::{Opening, Sensitive};
use crate::model::{Batch, Decoder, Reduction};
use crate::rng::{DirectionStream, SecretDomain, coin};
use std::path::Path;

/// A run in progress.
pub type Trainer<'a, B> = trainer::Trainer<'a, Plan, B>;

/// Records, and the fired groups that see them.
type Sample = (Sensitive<Vec<usize>>, Vec<u32>);

/// The inner products of every sample, one for each group that sees it, and the rest of all samples together.
type Shares = (Sensitive<Vec<Vec<f64>>>, Sensitive<Private>);

impl<B: Backend> Trainer<'_, B> {
    /// The samples of a step: each a list of records and the fired groups that see it.
    fn samples(&self, step: u32, groups: &[u32]) -> Result<Vec<Sample>> {
        let samples = self.crew.samples(&self.settings.common(), self.secret)?;
        Ok(match self.settings.batch_per {
            BatchPer::Step => vec![(samples.draw(step, 0), groups.to_vec())],
            BatchPer::Bit => groups.iter().map(|&g| (samples.draw(step, g), vec![g])).collect(),
        })
    }

    fn release_signs(&mut self, step: u32, groups: &[u32]) -> Result<Sensitive<Private>> {
        let directions: Vec<DirectionStream> =
            groups.iter().map(|&g| self.replayer.plan().direction(step, g)).collect();
        let (samples, owns): (Vec<_>, Vec<_>) = self.samples(step, groups)?.into_iter().unzip();
        let streams = |own: &[u32]| -> Vec<DirectionStream> {
            groups.iter().zip(&directions).filter(|(g, _)| own.contains(g)).map(|(_, d)| d.clone()).collect()
        };
        let (dots, private) = self.shares(samples, &owns, streams)?;
        let signs = dots.map(|dots| {
            let fires = owns.iter().flatten().zip(dots.into_iter().flatten());
            fires.map(|(&g, dot)| (g, self.release(step, g, dot))).collect::<Vec<_>>()
        });
        // The one place where a gradient's sign leaves: at most ln 2 nats a fire.
        let mut released = signs.open(&Opening::release("one sign of <gradient, u> a fired group"));
        released.sort_by_key(|r| r.0);
        let Decoder { backend, params, .. } = &mut self.decoder;
        self.replayer.step(backend, step, &released, &directions, params)?;
        self.record(&released);
        Ok(private)
    }

    /// From an inner product to what is released. Ties (exactly zero, not a number, infinite, an empty batch) take the public coin.
    fn release(&self, step: u32, group: u32, dot: f64) -> Message {
        let sign = sign_or_coin(dot, coin(self.settings.seed, step, group));
        match self.settings.release {
            Release::Bit => Message::Bit(sign),
            Release::Rr { flip, .. } => {
                let flipped = self.secret.stream(SecretDomain::Flips, step, group).bernoulli(flip);
                Message::Bit(if flipped { -sign } else { sign })
            }
            Release::Gaussian { dither } => {
                let noise = self.secret.stream(SecretDomain::Noise, step, group).gaussian();
                Message::Scalar(on_grid(f64::from(sign) + dither * noise, self.settings.clip))
            }
        }
    }

    fn record(&mut self, released: &[(u32, Message)]) {
        for (_, release) in released {
            match (release, &mut self.releases) {
                (Message::Bit(b), Releases::Bits(bits)) => bits.push(*b),
                (Message::Scalar(x), Releases::Scalars(scalars)) => scalars.push(*x),
                _ => unreachable!("releases are of the kind the settings name"),
            }
        }
    }

    /// `<gradient of the sample, u>` of each sample for each of its `groups`, by the engine that the settings name.
    fn shares(
        &self,
        samples: Vec<Sensitive<Vec<usize>>>,
        groups: &[Vec<u32>],
        streams: impl Fn(&[u32]) -> Vec<DirectionStream>,
    ) -> Result<Shares> {
        let (decoder, plan) = (&self.decoder, self.replayer.plan());
        let b = &decoder.backend;
        let samples = samples.into_iter().fold(Sensitive::new(Vec::new()), |all, sample| {
            all.zip(sample).map(|(mut all, sample)| {
                all.push(sample);
                all
            })
        });
        let work = samples.zip(self.records.as_ref()).map(|(samples, records)| -> Result<(Vec<Vec<f64>>, Private)> {
            let mut totals = Totals::new(&self.crew);
            for (sample, groups) in samples.iter().zip(groups) {
                // Directions are as large as what they belong to: made only by whoever has work for them.
                let mut directions: Option<Vec<GroupDirection>> = None;
                let make = || {
                    let own = groups.iter().zip(streams(groups));
                    own.map(|(&g, stream)| GroupDirection::new(stream, plan.members(g), &decoder.layout)).collect()
                };
                totals.sample(b, (sample, records), self.settings.micro_batch, groups.len(), |batch, seen| {
                    project(seen, decoder, batch, directions.get_or_insert_with(make), self.settings.engine)
                })?;
            }
            let (dots, batches): (_, Vec<Private>) = totals.add_up(b)?.into_iter().unzip();
            Ok((dots, Private::joined(batches)))
        });
        Ok(work.or_failed()?.unzip())
    }

    /// The ablation: true gradients of the fired groups, divided by the expected batch size. Not private.
    fn release_gradients(&mut self, step: u32, groups: &[u32]) -> Result<Sensitive<Private>> {
        let opening = Opening::non_private("the true gradient of every fired group");
        let mut totals = Totals::new(&self.crew);
        let mut gradients: Vec<(u32, Vec<B::Tensor>)> = Vec::new();
        let decoder = &self.decoder;
        let b = &decoder.backend;
        for (sample, groups) in self.samples(step, groups)? {
            let (sample, records) = sample.zip(self.records.as_ref()).open(&opening);
            let members = |g: u32| self.replayer.plan().members(g);
            let mut sum = Sum::new(b, &decoder.layout, |p| groups.iter().any(|&g| members(g).contains(&p)));
            totals.sample(b, (&sample, records), self.settings.micro_batch, 0, |batch, seen| {
                let means = batch.weights(Reduction::SampleSum);
                let weights: Vec<f32> = means.iter().map(|w| w / self.settings.batch as f32).collect();
                seen.add(b, batch, Some((&decoder.backward(batch, &weights, &mut sum), &means)))
            })?;
            let mut sums = sum.into_grads();
            self.crew.sum(b, sums.iter_mut().flatten())?;
            for &g in &groups {
                let own = members(g).iter().map(|p| sums[p.0].take().expect("asked for, and in one group")).collect();
                gradients.push((g, own));
            }
        }
        let total = Private::joined(totals.add_up(b)?.into_iter().map(|(_, batch)| batch));
        gradients.sort_by_key(|g| g.0);
        let Decoder { backend, params, .. } = &mut self.decoder;
        self.replayer.step_gradients(backend, step, &gradients, params)?;
        Ok(Sensitive::new(total))
    }
}

impl Trainable for Plan {
    fn fires(&self, stop: u32) -> Vec<(u32, u32)> {
        self.settings().fires(stop)
    }

    fn step_of((step, _): (u32, u32)) -> u32 {
        step
    }

    fn nothing(&self) -> Releases {
        match self.settings().release {
            Release::Gaussian { .. } => Releases::Scalars(Vec::new()),
            _ => Releases::Bits(Vec::new()),
        }
    }

    fn fires_of(&self, releases: &Releases) -> Option<usize> {
        Some(releases.len())
    }

    fn is_rebuildable(&self) -> bool {
        self.settings().payload == Payload::Sign
    }

    fn compute<B: Backend>(run: &mut Trainer<'_, B>, step: u32, fires: &[(u32, u32)]) -> Result<Step> {
        let groups: Vec<u32> = fires.iter().map(|f| f.1).collect();
        let private = match run.settings.payload {
            Payload::Sign => run.release_signs(step, &groups)?,
            Payload::TrueGradient => run.release_gradients(step, &groups)?,
        };
        Ok(Step { step, groups, private })
    }

    fn read(text: &str, path: &Path) -> Result<Transcript> {
        Transcript::from_json(text, path)
    }

    fn record(transcript: Transcript) -> Record {
        Record::Ferret(transcript)
    }
}

/// The sign of `dot`, or the public `coin` where it has none.
pub fn sign_or_coin(dot: f64, coin: i8) -> i8 {
    match dot {
        d if d > 0.0 && d.is_finite() => 1,
        d if d < 0.0 && d.is_finite() => -1,
        _ => coin,
    }
}

/// Add a micro-batch's `<gradient, u>` for every direction.
fn project<B: Backend>(
    seen: &mut Sums<B>,
    decoder: &Decoder<B>,
    batch: &Batch,
    directions: &[GroupDirection],
    engine: Engine,
) -> Result<()> {
    let b = &decoder.backend;
    let weights = batch.weights(Reduction::SampleSum);
    match engine {
        Engine::Backward => {
            let mut sink = GroupDot::new(b, directions, &batch.segments);
            let losses = decoder.backward(batch, &weights, &mut sink);
            for (i, rows) in sink.into_rows().iter().enumerate() {
                seen.add_dot(b, i, rows, None)?;
            }
            seen.add(b, batch, Some((&losses, &weights)))
        }
        Engine::Jvp => {
            for (i, direction) in directions.iter().enumerate() {
                seen.add_dot(b, i, &decoder.jvp(batch, direction), Some(&weights))?;
            }
            seen.add(b, batch, None)
        }
    }
}
