//! Which records are in the batch: drawn from the secret generator, and sensitive.
//!
//! Random access: the sample of a step does not depend on other steps having been drawn, so a run that computes only fired steps, or
//! resumes, sees the same samples.

use super::boundary::{Opening, Sensitive};
use crate::error::{Error, Result};
use crate::privacy::Sampler;
use crate::rng::{Secret, SecretDomain};

/// Draws samples of `records` records, `batch` of them in expectation.
pub struct Samples<'a> {
    secret: &'a Secret,
    sampler: Sampler,
    records: usize,
    batch: usize,
    /// All records, of which `records` are here.
    total: usize,
}

/// The part of the sampling stream that shuffles use; bits of a step are numbered from 0.
const SHUFFLE: u32 = u32::MAX >> 8;

impl<'a> Samples<'a> {
    /// A batch is not empty by design and not larger than the data.
    pub fn new(secret: &'a Secret, sampler: Sampler, records: usize, batch: usize) -> Result<Self> {
        if batch == 0 || batch > records {
            return Err(Error::usage(format!("`batch` {batch} of {records} records: give 1 to all of them")));
        }
        Ok(Self { secret, sampler, records, batch, total: records })
    }

    /// Those of the `own` records that are here, of `total` on all ranks: each is taken by itself at the same rate, whoever has it, so that all parts together are a
    /// Poisson sample of all records. The key is this rank's own.
    pub(super) fn of_shard(secret: &'a Secret, own: usize, total: usize, batch: usize) -> Result<Self> {
        if own > total {
            return Err(Error::usage(format!("a shard of {own} records of {total}: expected at most all of them")));
        }
        Ok(Self { records: own, total, ..Self::new(secret, Sampler::Poisson, total, batch)? })
    }

    /// What [`Samples::draw`] gives where it is no secret: with a generator whose seed is known, anyone can draw the same, and the
    /// statement of such a run promises nothing. None for a generator keyed by the system.
    pub fn known(&self, step: u32, bit: u32) -> Option<Vec<usize>> {
        let opening = Opening::non_private("samples of a known seed");
        self.secret.is_insecure().then(|| self.draw(step, bit).open(&opening))
    }

    /// The records of `step`; `bit` tells apart the samples of a step that draws several. In rising order, possibly none.
    pub fn draw(&self, step: u32, bit: u32) -> Sensitive<Vec<usize>> {
        let mut chosen: Vec<usize> = match self.sampler {
            Sampler::Poisson => {
                let rate = self.batch as f64 / self.total as f64;
                let mut stream = self.secret.stream(SecretDomain::Sampling, step, bit);
                (0..self.records).filter(|_| stream.bernoulli(rate)).collect()
            }
            Sampler::Uniform => {
                let mut stream = self.secret.stream(SecretDomain::Sampling, step, bit);
                let mut all: Vec<usize> = (0..self.records).collect();
                for i in 0..self.batch {
                    all.swap(i, i + stream.below((self.records - i) as u64) as usize);
                }
                all.truncate(self.batch);
                all
            }
            Sampler::Shuffle => {
                let steps = self.records.div_ceil(self.batch);
                let epoch = step as usize / steps;
                let mut stream = self.secret.stream(SecretDomain::Sampling, epoch as u32, SHUFFLE);
                let mut all: Vec<usize> = (0..self.records).collect();
                stream.shuffle(&mut all);
                let start = step as usize % steps * self.batch;
                all[start..(start + self.batch).min(self.records)].to_vec()
            }
        };
        chosen.sort_unstable();
        Sensitive::new(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(samples: &Samples, step: u32, bit: u32) -> Vec<usize> {
        samples.known(step, bit).unwrap()
    }

    #[test]
    fn only_samples_of_a_known_seed_are_known() {
        let (known, secret) = (Secret::insecure(1), Secret::from_system().unwrap());
        assert!(Samples::new(&known, Sampler::Poisson, 20, 5).unwrap().known(0, 0).is_some());
        assert!(Samples::new(&secret, Sampler::Poisson, 20, 5).unwrap().known(0, 0).is_none());
    }

    #[test]
    fn poisson_includes_every_record_by_itself_at_the_accountants_rate() {
        let secret = Secret::insecure(1);
        let samples = Samples::new(&secret, Sampler::Poisson, 200, 10).unwrap();
        let draws: Vec<Vec<usize>> = (0..4000).map(|step| draw(&samples, step, 0)).collect();
        let mut counts = vec![0.0; 200];
        draws.iter().flatten().for_each(|&i| counts[i] += 1.0);
        // 4,000 draws at rate 0.05: 200 expected, standard deviation 13.8.
        assert!(counts.iter().all(|c| (c - 200.0f64).abs() < 5.0 * 13.8), "{counts:?}");
        let sizes: Vec<f64> = draws.iter().map(|d| d.len() as f64).collect();
        let mean = sizes.iter().sum::<f64>() / 4000.0;
        let variance = sizes.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / 4000.0;
        assert!((mean - 10.0).abs() < 0.25 && (variance - 9.5).abs() < 1.1, "binomial sizes: {mean}, {variance}");
        // Two records are together as often as independence says: 10 times in 4,000, standard deviation 3.2.
        let both = draws.iter().filter(|d| d.contains(&3) && d.contains(&4)).count();
        assert!((both as f64 - 10.0).abs() < 16.0, "{both}");
    }

    #[test]
    fn uniform_has_a_fixed_size_and_shuffle_visits_every_record_once_an_epoch() {
        let secret = Secret::insecure(1);
        let uniform = Samples::new(&secret, Sampler::Uniform, 50, 7).unwrap();
        for step in 0..50 {
            let mut chosen = draw(&uniform, step, 0);
            chosen.dedup();
            assert_eq!(chosen.len(), 7);
        }
        let shuffle = Samples::new(&secret, Sampler::Shuffle, 50, 7).unwrap();
        for epoch in 0..3 {
            let mut all: Vec<usize> = (0..8).flat_map(|i| draw(&shuffle, epoch * 8 + i, 0)).collect();
            all.sort();
            assert_eq!(all, (0..50).collect::<Vec<_>>());
        }
        assert_ne!(draw(&shuffle, 0, 0), draw(&shuffle, 8, 0));
    }

    #[test]
    fn bits_and_steps_have_samples_of_their_own() {
        let secret = Secret::insecure(1);
        let samples = Samples::new(&secret, Sampler::Poisson, 500, 50).unwrap();
        let all: std::collections::HashSet<Vec<usize>> =
            (0..20).flat_map(|step| (0..5).map(move |bit| (step, bit))).map(|(s, b)| draw(&samples, s, b)).collect();
        assert_eq!(all.len(), 100);
        assert_eq!(draw(&samples, 3, 2), draw(&samples, 3, 2));
    }

    #[test]
    fn absurd_batches_are_refused() {
        let secret = Secret::insecure(1);
        assert!(Samples::new(&secret, Sampler::Poisson, 5, 0).is_err());
        assert!(Samples::new(&secret, Sampler::Poisson, 5, 6).is_err());
    }
}
