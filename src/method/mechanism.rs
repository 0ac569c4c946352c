//! A method of one's own: how code outside this crate crosses the boundary.
//!
//! Whoever writes a method implements [`Mechanism`]: a computation on a sample of records whose result may leave, and the [`Event`]
//! that says what it costs. A [`Crossing`] holds the records, draws the samples, opens the box for the mechanism alone and keeps the
//! list of events for an accountant. So the places where private data becomes public are still few and have names: `Opening::` in this
//! crate, `impl Mechanism` in others. What the compiler cannot check is that the event is true of the computation: that is for whoever
//! reads the implementation.

use super::boundary::{Opening, Sensitive};
use super::sampler::Samples;
use crate::data::Example;
use crate::error::{Error, Result};
use crate::privacy::Event;
use crate::privacy::Sampler;
use crate::rng::{Secret, SecretDomain, SecretStream};

/// A computation whose result may be published.
pub trait Mechanism {
    /// What may leave the boundary.
    type Release;

    /// What one release on a Poisson sample at `sampling_rate` tells, for accountants; none where nothing is promised.
    fn event(&self, sampling_rate: f64) -> Option<Event>;

    /// Compute it on the records of a sample, which may be none. `secret` is this step's own stream, for noise and flips.
    fn release(&self, sample: &[&Example], secret: &mut SecretStream) -> Result<Self::Release>;
}

/// Records that are seen through mechanisms only.
pub struct Crossing<'a> {
    records: Sensitive<&'a [Example]>,
    batch: usize,
    secret: Secret,
    sampling_rate: f64,
    step: u32,
    events: Option<Vec<Event>>,
}

impl<'a> Crossing<'a> {
    /// Poisson samples of `batch` records in expectation, drawn by `secret`, which is this crossing's own: a second one with the same
    /// generator would draw the same samples and add the same noise, and the difference of the two would have none.
    pub fn new(records: &'a [Example], batch: usize, secret: Secret) -> Result<Self> {
        Samples::new(&secret, Sampler::Poisson, records.len(), batch)?;
        // Of samples and noise that anyone can draw again, nothing is promised.
        let events = (!secret.is_insecure()).then(Vec::new);
        let sampling_rate = batch as f64 / records.len() as f64;
        Ok(Self { records: Sensitive::new(records), batch, secret, sampling_rate, step: 0, events })
    }

    /// Draw the next sample and let `mechanism` release what it makes of it.
    pub fn release<M: Mechanism>(&mut self, mechanism: &M) -> Result<M::Release> {
        let step = self.step;
        self.step = step.checked_add(1).ok_or_else(|| Error::usage("more releases than 32 bits can count"))?;
        // Charged before it is computed: whatever comes of it, it was released.
        self.events = self.events.take().zip(mechanism.event(self.sampling_rate)).map(|(mut events, event)| {
            events.push(event);
            events
        });
        let mut stream = self.secret.stream(SecretDomain::Noise, step, 0);
        let count = self.records.as_ref().map(|records| records.len());
        let count = count.open(&Opening::release("the number of records, which is public"));
        let samples = Samples::new(&self.secret, Sampler::Poisson, count, self.batch)?;
        let released = samples.draw(step, 0).zip(self.records.as_ref()).map(|(sample, records)| {
            let sample: Vec<&Example> = sample.into_iter().map(|i| &records[i]).collect();
            mechanism.release(&sample, &mut stream)
        });
        released.open(&Opening::release("what a mechanism says may leave, charged as it says"))
    }

    /// All releases so far, for an accountant; an error once one of them promised nothing.
    pub fn event(&self) -> Result<Event> {
        self.events.clone().map(Event::Composed).ok_or_else(|| {
            Error::Privacy(
                "a release promised nothing, or samples and noise come from a known seed: no accountant can charge for that".into(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privacy::{Accountant, Rdp};

    /// How many records there are, with noise.
    struct Count(Option<f64>);

    impl Mechanism for Count {
        type Release = (usize, f64);

        fn event(&self, sampling_rate: f64) -> Option<Event> {
            self.0.map(|noise_multiplier| Event::SubsampledGaussian { noise_multiplier, sampling_rate, steps: 1 })
        }

        fn release(&self, sample: &[&Example], secret: &mut SecretStream) -> Result<(usize, f64)> {
            Ok((sample.len(), sample.len() as f64 + self.0.unwrap_or(0.0) * secret.gaussian()))
        }
    }

    #[test]
    fn samples_are_poisson_noise_is_fresh_and_every_release_is_charged() {
        let records = vec![Example::all(vec![1, 2]); 400];
        let secret = Secret::from_system().unwrap();
        let mut crossing = Crossing::new(&records, 40, secret).unwrap();
        let (mut sizes, mut noises) = (Vec::new(), Vec::new());
        for _ in 0..500 {
            let (size, noisy) = crossing.release(&Count(Some(2.0))).unwrap();
            sizes.push(size as f64);
            noises.push(noisy - size as f64);
        }
        let moments = |x: &[f64]| {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            (mean, x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64)
        };
        let ((mean, variance), (noise_mean, noise_variance)) = (moments(&sizes), moments(&noises));
        // Binomial(400, 0.1): mean 40, variance 36; six standard deviations of their estimates.
        assert!((mean - 40.0).abs() < 1.7 && (variance - 36.0).abs() < 14.0, "{mean} {variance}");
        assert!(noise_mean.abs() < 0.55 && (noise_variance - 4.0).abs() < 1.6, "{noise_mean} {noise_variance}");
        let once = |steps| Event::SubsampledGaussian { noise_multiplier: 2.0, sampling_rate: 0.1, steps };
        let charged = Rdp::default().epsilon(&crossing.event().unwrap(), 1e-5).unwrap();
        assert_eq!(charged, Rdp::default().epsilon(&once(500), 1e-5).unwrap());
        // One release without a promise voids all.
        crossing.release(&Count(None)).unwrap();
        crossing.release(&Count(Some(2.0))).unwrap();
        assert!(matches!(crossing.event(), Err(Error::Privacy(_))));
        assert!(Crossing::new(&records, 40, Secret::insecure(1)).unwrap().event().is_err());
    }
}
