//! Training: for every step that computes, each record's sketch, clipped; their sum, noised; its levels, signs or places on a grid; one update.

use super::levels::Levels;
use super::plan::Plan;
use super::settings::{Release, Settings};
use super::sum::Total;
use super::transcript::{Releases, Transcript, on_grid};
use crate::backend::Backend;
use crate::data::Example;
use crate::error::Result;
use crate::grad::Sketch;
use crate::method::ferret::sign_or_coin;
use crate::method::list::Record;
use crate::method::run::Step;
use crate::method::tally::Private;
use crate::method::trainer::{self, Trainable};
use crate::method::{Opening, Sensitive};
use crate::model::{Decoder, Reduction};
use crate::ops::sketch::clip;
use crate::rng::{SecretDomain, StepSketch, coin};
use std::path::Path;

/// A run in progress.
pub type Trainer<'a, B> = trainer::Trainer<'a, Plan, B>;

impl<B: Backend> Trainer<'_, B> {
    /// The sum over the sample of every record's clipped sketch, k numbers.
    fn sums(&self, sketch: &StepSketch, sample: &[usize], records: &[Example]) -> Result<(Vec<f64>, Private)> {
        let (decoder, settings) = (&self.decoder, &self.settings);
        let (b, function) = (&decoder.backend, settings.clip_rule);
        let mut total = Total::new(sketch.k(), settings.clip);
        let private = self.crew.batch(b, (sample, records), settings.micro_batch, |batch, seen| {
            let means = batch.weights(Reduction::SampleSum);
            let tunes = |p| self.replayer.plan().tunes(p);
            let mut sink = Sketch::new(b, &decoder.layout, sketch, batch.segments.len(), tunes);
            let losses = decoder.backward(batch, &means, &mut sink);
            for mut v in sink.finish(b)? {
                clip(function, settings.clip, &mut v);
                total.add(&v);
            }
            seen.add(b, batch, Some((&losses, &means)))
        })?;
        self.crew.add(total.units())?;
        Ok((total.read(), private))
    }

    /// Noise on every sum, once a logical batch and in double precision; then what is released of them. An empty batch is noise alone, and one like any
    /// other. Where there is no noise, a sum of 0 takes the public coin.
    fn release(&self, step: u32, sums: Sensitive<Vec<f64>>) -> Releases {
        let Settings { noise_multiplier, clip, release, seed, .. } = self.settings;
        let mut noise = self.secret.stream(SecretDomain::Noise, step, 0);
        // Never less noise than was accounted for.
        let sigma = if noise_multiplier > 0.0 { (noise_multiplier * clip).next_up() } else { 0.0 };
        let noised = sums.map(|sums| {
            let noised = sums.iter().map(|sum| sum + sigma * noise.gaussian());
            let coin = |bucket| coin(seed, step, bucket);
            match release {
                Release::Sign => {
                    Releases::Signs(noised.zip(0..).map(|(x, bucket)| sign_or_coin(x, coin(bucket))).collect())
                }
                Release::Level => Releases::Levels(Levels::of(&noised.map(|x| x / clip).collect::<Vec<_>>(), coin)),
                Release::Scalar => Releases::Scalars(noised.map(|x| on_grid(x / clip)).collect()),
            }
        });
        // The one place where something of a gradient leaves.
        noised.open(&if self.settings.holds() {
            Opening::release(
                "signs, levels, or places on a grid, of clipped sums with Gaussian noise, as charged by the accountants",
            )
        } else {
            Opening::non_private("sums without noise, or of sketches that are not clipped")
        })
    }
}

impl Trainable for Plan {
    fn fires(&self, stop: u32) -> Vec<u32> {
        self.settings().fires(stop)
    }

    fn step_of(fire: u32) -> u32 {
        fire
    }

    fn nothing(&self) -> Releases {
        Releases::none(self.settings().release)
    }

    fn fires_of(&self, releases: &Releases) -> Option<usize> {
        let k = self.settings().k();
        releases.is_whole(k).then_some(releases.len() / k)
    }

    fn is_rebuildable(&self) -> bool {
        true
    }

    fn compute<B: Backend>(run: &mut Trainer<'_, B>, step: u32, _fires: &[u32]) -> Result<Step> {
        let sketch = run.replayer.plan().sketch(step);
        let sample = run.crew.samples(&run.settings.common(), run.secret)?.draw(step, 0);
        let work = sample.zip(run.records.as_ref()).map(|(sample, records)| run.sums(&sketch, &sample, records));
        let (sums, private) = work.or_failed()?.unzip();
        let released = run.release(step, sums);
        let Decoder { backend, params, .. } = &mut run.decoder;
        run.replayer.step(backend, step, &released.numbers(0, sketch.k()), &sketch, params)?;
        run.releases.extend(released);
        Ok(Step { step, groups: Vec::new(), private })
    }

    fn read(text: &str, path: &Path) -> Result<Transcript> {
        Transcript::from_json(text, path)
    }

    fn record(transcript: Transcript) -> Record {
        Record::FerretK(transcript)
    }
}
