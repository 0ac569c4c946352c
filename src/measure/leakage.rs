//! FERRET's bits, taken apart record by record: the tensor side of [`crate::audit::leakage`].

use crate::audit::leakage::{Leakage, Meter};
use crate::backend::Backend;
use crate::data::{Example, batches, examples_sha256};
use crate::error::{Error, Result};
use crate::grad::{GroupDirection, GroupDot};
use crate::hash::sha256;
use crate::method::ferret::{BatchPer, Message, Payload, Release, Releases, Replayer, Transcript, sign_or_coin};
use crate::method::run::{Run, Step, Watch, drive};
use crate::method::{Opening, Private, Samples, Sensitive};
use crate::model::{Decoder, Reduction, Weights, checkpoint};
use crate::privacy::Sampler;
use crate::ranks::{Ranks, agree, broadcast, gather_numbers};
use crate::rng::{DirectionStream, Secret, coin};
use serde::{Deserialize, Serialize};

/// What a rerun of the fired steps showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The meter's reading.
    #[serde(flatten)]
    pub leakage: Leakage,
    /// Share of the fresh samples whose sign is the released bit: 1/2 where bits are chance, 1 where every sample says the same.
    pub agreement: f64,
}

/// What is metered, and how.
pub struct Metering<'a> {
    /// The run that is metered.
    pub transcript: &'a Transcript,
    /// The records that it was trained on.
    pub examples: &'a [Example],
    /// Draws the samples. The first rank's counts.
    pub secret: &'a Secret,
    /// Records computed on at once.
    pub micro_batch: usize,
    /// Who computes: every one of them meters the same, and reads the same.
    pub ranks: &'a dyn Ranks,
}

/// Rerun the fired steps of a FERRET run on its records, and meter every drawn record's share `<g_i, u>`.
///
/// The weights go where the released bits took them. The run's own samples are secret and gone, so every bit is asked of a fresh
/// Poisson sample at the run's rate: the reading is of runs like this one. `done` hears how many bits
/// are over, and stops the work by an error.
pub fn leakage<B: Backend>(
    backend: B,
    base: Weights,
    metering: &Metering,
    done: impl FnMut(usize) -> Result<()>,
) -> Result<Reading> {
    let &Metering { transcript, examples, secret, micro_batch, ranks } = metering;
    transcript.check()?;
    let settings = &transcript.settings;
    let (Payload::Sign, Releases::Bits(bits)) = (settings.payload, &transcript.releases) else {
        return Err(Error::usage(
            "the leakage meter reads released bits, and this run released something else: only `payload` sign with `release` bit \
             or rr can be metered",
        ));
    };
    let flip = match settings.release {
        Release::Rr { flip, .. } => flip,
        _ => 0.0,
    };
    let found = checkpoint::tensors_sha256(&base);
    if found != transcript.base_sha256 {
        return Err(Error::usage(format!(
            "the run began at tensors with SHA-256 {}, this base model has {found}: give the one it was trained from",
            transcript.base_sha256
        )));
    }
    if examples.len() as u64 != settings.records {
        return Err(Error::usage(format!(
            "the run had {} records, the data has {}: give the records it was trained on",
            settings.records,
            examples.len()
        )));
    }
    agree(
        ranks,
        "what the meter is told",
        &[
            ("transcript, by its SHA-256,", sha256(transcript.to_json()?)),
            ("set of records, by its SHA-256,", examples_sha256(examples)),
            ("`micro_batch`", micro_batch.to_string()),
        ],
    )?;
    let key = broadcast(ranks, "key", &secret.to_ranks())?;
    let secret = &Secret::from_ranks(&key)?;
    let samples = Samples::new(secret, Sampler::Poisson, examples.len(), settings.batch as usize)?;
    let base = match &settings.adapter {
        Some(adapter) => adapter.attach(base, settings.seed)?,
        None => base,
    };
    let (fires, replayer) = (transcript.fires(), Replayer::new(&base.layout, settings)?);
    let meter = Meter::new(settings.sampling_rate(), flip)?;
    let decoder = Decoder::new(backend, base)?;
    let mut rerun =
        Rerun { decoder, replayer, fires, bits, at: 0, agreed: 0, examples, samples, micro_batch, ranks, meter };
    drive(&mut rerun, &mut Bits(done))?;
    Ok(Reading { leakage: rerun.meter.read(), agreement: rerun.agreed as f64 / rerun.at.max(1) as f64 })
}

/// A run that is made again on fresh samples, and goes where the released bits took it.
struct Rerun<'a, B: Backend> {
    decoder: Decoder<B>,
    replayer: Replayer<B>,
    fires: Vec<(u32, u32)>,
    bits: &'a [i8],
    /// Bits over, and how many of them the fresh sample gave too.
    at: usize,
    agreed: usize,
    examples: &'a [Example],
    samples: Samples<'a>,
    micro_batch: usize,
    ranks: &'a dyn Ranks,
    meter: Meter,
}

/// Tells the number of bits of every step.
struct Bits<F>(F);

impl<B: Backend, F: FnMut(usize) -> Result<()>> Watch<B> for Bits<F> {
    fn after(&mut self, _run: &mut dyn Run<B>, step: Step) -> Result<()> {
        (self.0)(step.groups.len())
    }
}

impl<B: Backend> Run<B> for Rerun<'_, B> {
    fn next(&self) -> Option<u32> {
        self.fires.get(self.at).map(|f| f.0)
    }

    fn progress(&self) -> (u64, u64) {
        (self.at as u64, self.fires.len() as u64)
    }

    fn step(&mut self) -> Result<Option<Step>> {
        let Some(step) = self.next() else { return Ok(None) };
        let Self { decoder, replayer, fires, bits, at, agreed, examples, samples, micro_batch, ranks, meter } = self;
        let opening = Opening::evaluation("shares of records, for whoever holds them");
        let settings = replayer.plan().settings().clone();
        let groups: Vec<u32> = fires[*at..].iter().take_while(|f| f.0 == step).map(|f| f.1).collect();
        replayer.catch_up(&decoder.backend, step, &mut decoder.params);
        let directions: Vec<DirectionStream> = groups.iter().map(|&g| replayer.plan().direction(step, g)).collect();
        let together = match settings.batch_per {
            BatchPer::Step => groups.len(),
            BatchPer::Bit => 1,
        };
        let mut released = Vec::with_capacity(groups.len());
        for (groups, streams) in groups.chunks(together).zip(directions.chunks(together)) {
            let bit = if settings.batch_per == BatchPer::Step { 0 } else { groups[0] };
            let sample = samples.draw(step, bit).open(&opening);
            let along: Vec<GroupDirection> = groups
                .iter()
                .zip(streams)
                .map(|(&g, u)| GroupDirection::new(u.clone(), replayer.plan().members(g), &decoder.layout))
                .collect();
            let batches: Vec<&[usize]> = sample.chunks((*micro_batch).max(1)).collect();
            let shares = shares(*ranks, decoder, examples, &batches, &along)?;
            let ids: Vec<u64> = sample.iter().map(|&i| i as u64).collect();
            for (&group, shares) in groups.iter().zip(&shares) {
                let public = coin(settings.seed, step, group);
                meter.add(&ids, shares, public == 1)?;
                *agreed += usize::from(sign_or_coin(shares.iter().sum(), public) == bits[*at]);
                released.push((group, Message::Bit(bits[*at])));
                *at += 1;
            }
        }
        replayer.step(&decoder.backend, step, &released, &directions, &mut decoder.params)?;
        Ok(Some(Step { step, groups, private: Sensitive::new(Private::default()) }))
    }

    fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }
}

/// `<g_i, u>` of every record of the sample's `batches`, for each direction: `g_i` is the gradient of the record's mean token loss. The batches go round the ranks.
fn shares<B: Backend>(
    ranks: &dyn Ranks,
    decoder: &Decoder<B>,
    examples: &[Example],
    batches: &[&[usize]],
    directions: &[GroupDirection],
) -> Result<Vec<Vec<f64>>> {
    let b = &decoder.backend;
    // Batch by batch, and in each direction by direction.
    let mut own = Vec::new();
    for chunk in batches.iter().skip(ranks.rank()).step_by(ranks.size()) {
        let batch = batches::batch(chunk.iter().map(|&i| &examples[i]));
        let mut sink = GroupDot::new(b, directions, &batch.segments);
        decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sink);
        for rows in sink.into_rows() {
            let rows = b.download(&rows)?;
            let sum = |range: std::ops::Range<usize>| rows[range].iter().map(|&x| f64::from(x)).sum::<f64>();
            own.extend(batch.segments.iter().map(sum));
        }
    }
    let all = gather_numbers(ranks, "shares of records", &own)?;
    let mut left: Vec<&[f64]> = all.iter().map(|of| &of[..]).collect();
    let mut shares = vec![Vec::new(); directions.len()];
    for (i, chunk) in batches.iter().enumerate() {
        let rank = i % ranks.size();
        for shares in &mut shares {
            let Some((next, rest)) = left[rank].split_at_checked(chunk.len()) else {
                return Err(Error::Rank(format!("rank {rank} sent too few shares")));
            };
            shares.extend_from_slice(next);
            left[rank] = rest;
        }
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::model::ParamId;
    use crate::ranks::threads::on_threads;
    use crate::rng::Direction;

    /// Each batch is computed once, and a record's share is where one process has it, to the bit.
    #[test]
    fn the_batches_of_a_sample_go_round_the_ranks() {
        let base = checkpoint::load_folder(std::path::Path::new("tests/fixtures/gpt2_tiny")).unwrap().weights;
        let record = |i: u32| Example::all((0..3 + i).map(|t| (5 * t + i) % 100).collect());
        let examples: Vec<Example> = (0..7).map(record).collect();
        let (sample, groups) = ([6, 0, 3, 5, 1], [[ParamId(0), ParamId(2)], [ParamId(3), ParamId(5)]]);
        let batches: Vec<&[usize]> = sample.chunks(2).collect();
        let on = |size: usize| {
            on_threads(size, |ranks| {
                let decoder = Decoder::new(Cpu::<f32>::new(), base.clone())?;
                let along = |(g, members): (usize, &[ParamId; 2])| {
                    let dim = decoder.layout.scalars_of(members);
                    let stream = DirectionStream::new(7, 0, g as u32, Direction::Rademacher, dim);
                    GroupDirection::new(stream, members, &decoder.layout)
                };
                let directions: Vec<GroupDirection> = groups.iter().enumerate().map(along).collect();
                Ok((shares(&*ranks, &decoder, &examples, &batches, &directions)?, ranks))
            })
        };
        let one = on(1).remove(0).unwrap().0;
        assert!(one.len() == 2 && one.iter().all(|of| of.len() == 5 && of.iter().all(|x| *x != 0.0)));
        for size in 2..=4 {
            for of in on(size) {
                let (shares, ranks) = of.unwrap();
                assert_eq!(shares, one, "{size} ranks");
                let sent: Vec<usize> = ranks.seen()[0].1.iter().map(|bytes| bytes.len() / 16).collect();
                assert_eq!(sent, [&[3, 2][..], &[2, 2, 1], &[2, 2, 1, 0]][size - 2], "records of each rank");
            }
        }
    }
}
