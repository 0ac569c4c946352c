//! FERRET's bits, taken apart record by record: the tensor side of [`crate::audit::leakage`].

use crate::audit::leakage::{Leakage, Meter};
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::grad::{GroupDirection, GroupDot};
use crate::method::ferret::{BatchPer, Payload, Release, Released, Releases, Replayer, Transcript, sign_or_coin};
use crate::method::run::{Run, Step, Watch, drive};
use crate::method::{Opening, Private, Samples, Sensitive};
use crate::model::{Decoder, Reduction, Weights, checkpoint};
use crate::privacy::Sampler;
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

/// Rerun the fired steps of `transcript` on `examples`, the run's records, and meter every drawn record's share `<g_i, u>`.
///
/// The weights go where the released bits took them. The run's own samples are secret and gone, so every bit is asked of a fresh
/// Poisson sample at the run's rate, drawn by `secret`: the reading is of runs like this one. `done` hears how many bits
/// are over, and stops the work by an error.
pub fn leakage<B: Backend>(
    backend: B,
    base: Weights,
    transcript: &Transcript,
    examples: &[Example],
    secret: &Secret,
    micro_batch: usize,
    done: impl FnMut(usize) -> Result<()>,
) -> Result<Reading> {
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
    let samples = Samples::new(secret, Sampler::Poisson, examples.len(), settings.batch as usize)?;
    let base = match &settings.adapter {
        Some(adapter) => adapter.attach(base, settings.seed)?,
        None => base,
    };
    let (fires, replayer) = (transcript.fires(), Replayer::new(&base.layout, settings)?);
    let meter = Meter::new(settings.sampling_rate(), flip)?;
    let decoder = Decoder::new(backend, base)?;
    let mut rerun = Rerun { decoder, replayer, fires, bits, at: 0, agreed: 0, examples, samples, micro_batch, meter };
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
        let Self { decoder, replayer, fires, bits, at, agreed, examples, samples, micro_batch, meter } = self;
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
            let shares = shares(decoder, examples, &sample, &along, *micro_batch)?;
            let ids: Vec<u64> = sample.iter().map(|&i| i as u64).collect();
            for (&group, shares) in groups.iter().zip(&shares) {
                let public = coin(settings.seed, step, group);
                meter.add(&ids, shares, public == 1)?;
                *agreed += usize::from(sign_or_coin(shares.iter().sum(), public) == bits[*at]);
                released.push((group, Released::Bit(bits[*at])));
                *at += 1;
            }
        }
        replayer.step(&decoder.backend, step, &released, &directions, &mut decoder.params)?;
        let private = Sensitive::new(Private { records: 0, tokens: 0, loss: None });
        Ok(Some(Step { step, groups, private }))
    }

    fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }
}

/// `<g_i, u>` of every record of the sample, for each direction: `g_i` is the gradient of the record's mean token loss.
fn shares<B: Backend>(
    decoder: &Decoder<B>,
    examples: &[Example],
    sample: &[usize],
    directions: &[GroupDirection],
    micro_batch: usize,
) -> Result<Vec<Vec<f64>>> {
    let b = &decoder.backend;
    let mut shares = vec![Vec::with_capacity(sample.len()); directions.len()];
    for chunk in sample.chunks(micro_batch.max(1)) {
        let batch = batches::batch(chunk.iter().map(|&i| &examples[i]));
        let mut sink = GroupDot::new(b, directions, &batch.segments);
        decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sink);
        for (shares, rows) in shares.iter_mut().zip(sink.into_rows()) {
            let rows = b.download(&rows)?;
            let sum = |range: std::ops::Range<usize>| rows[range].iter().map(|&x| f64::from(x)).sum::<f64>();
            shares.extend(batch.segments.iter().map(sum));
        }
    }
    Ok(shares)
}
