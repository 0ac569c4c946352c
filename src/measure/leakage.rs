//! FERRET's bits, taken apart record by record: the tensor side of [`crate::audit::leakage`].

use crate::audit::leakage::{Leakage, Meter};
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::grad::{GroupDirection, GroupDot};
use crate::method::ferret::run::sign_or_coin;
use crate::method::ferret::{BatchPer, Payload, Release, Released, Releases, Replayer, Transcript};
use crate::method::{Held, Opening, Samples};
use crate::model::{Decoder, Reduction, Weights, checkpoint};
use crate::privacy::statement::Sampler;
use crate::rng::{Secret, coin};
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
/// Poisson sample at the run's rate, drawn by `secret`: the reading is of runs like this one. `done` hears of every bit, and stops
/// the work by an error.
pub fn leakage<B: Backend>(
    backend: B,
    base: Weights,
    transcript: &Transcript,
    examples: &[Example],
    secret: &Secret,
    micro_batch: usize,
    mut done: impl FnMut(usize) -> Result<()>,
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
    let opening = Opening::evaluation("shares of records, for whoever holds them");
    let samples = Samples::new(secret, Sampler::Poisson, examples.len(), settings.batch as usize)?;
    let mut meter = Meter::new(settings.sampling_rate, flip)?;
    let mut replayer = Replayer::new(&base.layout, settings)?;
    let mut held = Held::new(backend, base)?;
    let fires = transcript.fires();
    let (mut at, mut agreed) = (0, 0);
    for step_fires in fires.chunk_by(|a, b| a.0 == b.0) {
        let step = step_fires[0].0;
        let catch_up = |weights: &mut [&mut [f32]]| {
            replayer.catch_up_all(step, weights);
            Ok(())
        };
        held.update(|_| true, catch_up)?;
        let groups: Vec<u32> = step_fires.iter().map(|f| f.1).collect();
        let together = match settings.batch_per {
            BatchPer::Step => vec![groups.clone()],
            BatchPer::Bit => groups.iter().map(|&g| vec![g]).collect(),
        };
        let mut released = Vec::with_capacity(groups.len());
        for groups in together {
            let bit = if settings.batch_per == BatchPer::Step { 0 } else { groups[0] };
            let sample = samples.draw(step, bit).open(&opening);
            let decoder = held.decoder();
            let directions: Vec<GroupDirection> = groups
                .iter()
                .map(|&g| GroupDirection::new(replayer.direction(step, g), replayer.members(g), &decoder.layout))
                .collect();
            let shares = shares(decoder, examples, &sample, &directions, micro_batch)?;
            let ids: Vec<u64> = sample.iter().map(|&i| i as u64).collect();
            for (&group, shares) in groups.iter().zip(&shares) {
                let public = coin(settings.seed, step, group);
                meter.add(&ids, shares, public == 1)?;
                agreed += usize::from(sign_or_coin(shares.iter().sum(), public) == bits[at]);
                released.push((group, Released::Bit(bits[at])));
                at += 1;
                done(1)?;
            }
        }
        held.update(|_| true, |weights| replayer.step(step, &released, weights))?;
    }
    Ok(Reading { leakage: meter.read(), agreement: agreed as f64 / at.max(1) as f64 })
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
