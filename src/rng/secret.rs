//! Secret randomness: which records are sampled, DPSGD's noise, flipped bits.
//!
//! ChaCha with 20 rounds, keyed with 256 bits from the operating system. Amplification by sampling holds only while the sample is
//! secret, and noise protects only while it is unknown, so the key is never written but to the file that resuming needs: readable
//! by its owner alone, removed when the run ends. Streams are addressed by (domain, step, part), so that a run that
//! continues at step t draws what an uninterrupted one would have:
//!
//! ```text
//! word   0..4   the cipher's constant
//! word   4..12  key
//! word  12      number of the block
//! word  13      part: whatever a step needs several streams for (one a bit, say)
//! word  14      step
//! word  15      domain
//! ```
//!
//! A part has 2^36 words; noise for 10^10 parameters fits.
//!
//! # What the noise defends, and what it does not
//! The guarantees are about real numbers; the noise is a float. A float Gaussian by inversion or Box-Muller reaches only some of the
//! values near a given one, and which ones depends on what it is added to (Mironov 2012 for Laplace; Holohan and
//! Braghin 2021, Jin et al. 2022 for Gaussian). Defended: every value is the sum of four independent Gaussians over two, from
//! four pairs of 64 random bits each, the remedy of Holohan and Braghin that Opacus' secure mode uses too; tails are cut
//! beyond 7 standard deviations (mass 2e-13). FERRET's noisy scalars are published one by one, so their noise is in double precision and the sum
//! is rounded to a public grid (`ferret::transcript::on_grid`). Not defended, for DPSGD: the sum is rounded to f32 on a grid that depends on its exponent, there is no discrete
//! Gaussian, the time it takes is not constant by design (there is no branch on a secret in the generator), and the key stays in memory
//! until the process ends.

mod file;
mod shard;
mod travel;

use file::KeyFile;
pub(crate) use shard::{Place, ShardKey};

use super::gauss::{self, NOISE, NOISE_WORDS};
use super::public::fill_words;
use super::{below, shuffle, threshold};
use crate::error::{Error, Result};
use crate::fsio;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a secret word is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SecretDomain {
    /// Which records are in the batch.
    Sampling = 1,
    /// Gaussian noise.
    Noise = 2,
    /// Which released bits are flipped.
    Flips = 3,
}

/// The secret generator's key. Has no `Debug`, `Display` or `Clone`: it should not travel.
pub struct Secret {
    key: [u8; 32],
    insecure: bool,
    /// Whether a run has it.
    claimed: AtomicBool,
}

/// What the file of a run's key calls itself.
const FORMAT: &str = "ferret resume key";

impl Secret {
    /// A fresh key from the operating system.
    pub fn from_system() -> Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|e| {
            Error::Privacy(format!(
                "the operating system gave no random bytes ({e}): sampling and noise would not be secret"
            ))
        })?;
        Ok(Self { key, insecure: false, claimed: AtomicBool::new(false) })
    }

    /// A key that anyone who knows `seed` can make: for repeatable runs. What is released under it is not private.
    pub fn insecure(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[16..].copy_from_slice(b"ferret insecure!");
        Self { key, insecure: true, claimed: AtomicBool::new(false) }
    }

    /// Whether it is the generator of this known seed.
    pub fn is_of(&self, seed: u64) -> bool {
        self.insecure && self.key == Self::insecure(seed).key
    }

    /// Whether the key came from a seed. The privacy statement must then say that sampling and noise are known.
    pub fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// Take the generator for one run. Two runs of one key would draw the same samples and the same noise, and the difference of their
    /// models would have none: a second one is refused. Of a known seed nothing is promised, and any number of runs may use it.
    pub fn claim(&self) -> Result<()> {
        if self.claimed.swap(true, Ordering::Relaxed) && !self.insecure {
            return Err(Error::Privacy(
                "this secret generator has served a run: a second one would add the same noise; draw a fresh one"
                    .into(),
            ));
        }
        Ok(())
    }

    /// The stream at (domain, step, part), from its start.
    pub fn stream(&self, domain: SecretDomain, step: u32, part: u32) -> SecretStream {
        SecretStream(self.rng(domain, step, part, 0))
    }

    fn rng(&self, domain: SecretDomain, step: u32, part: u32, word: u64) -> ChaCha20Rng {
        let mut rng = ChaCha20Rng::from_seed(self.key);
        rng.set_stream(u64::from(domain as u32) << 32 | u64::from(step));
        rng.set_word_pos((u128::from(part) << 36) + u128::from(word));
        rng
    }

    /// Add Gaussian noise of standard deviation `sigma` to every tensor, for this step: element i of the tensors end to end gets
    /// value i of the noise, whatever the thread count.
    pub fn add_noise(&self, step: u32, sigma: f32, tensors: &mut [Vec<f32>]) {
        let mut offset = 0;
        for tensor in tensors {
            self.add_noise_at(step, offset, sigma, tensor);
            offset += tensor.len() as u64;
        }
    }

    /// Add values `offset ..` of the step's noise, times `sigma`, to `out`.
    pub fn add_noise_at(&self, step: u32, offset: u64, sigma: f32, out: &mut [f32]) {
        // Cut where batches begin, so that a task computes each of its batches once.
        const TASK: usize = 64 * NOISE;
        let head = out.len().min((TASK as u64 - offset % TASK as u64) as usize);
        let (first, rest) = out.split_at_mut(head);
        let tasks = std::iter::once((offset, first))
            .chain(rest.chunks_mut(TASK).enumerate().map(|(i, c)| (offset + head as u64 + (i * TASK) as u64, c)));
        tasks.par_bridge().for_each(|(offset, out)| self.noise_task(step, offset, sigma, out));
    }

    fn noise_task(&self, step: u32, offset: u64, sigma: f32, out: &mut [f32]) {
        let batch = offset / NOISE as u64;
        let mut skip = (offset % NOISE as u64) as usize;
        let mut rng = self.rng(SecretDomain::Noise, step, 0, batch * NOISE_WORDS as u64);
        let mut words = [0; NOISE_WORDS];
        let mut z = [0.0; NOISE];
        let mut done = 0;
        while done < out.len() {
            fill_words(&mut rng, &mut words);
            gauss::noise(&words, sigma, &mut z);
            let take = (NOISE - skip).min(out.len() - done);
            for (x, n) in out[done..done + take].iter_mut().zip(&z[skip..]) {
                *x += n;
            }
            done += take;
            skip = 0;
        }
    }

    /// Write the key where resuming finds it: whole or not at all, readable and writable by its owner only.
    pub fn save(&self, path: &Path) -> Result<()> {
        fsio::write_private(path, KeyFile::new(FORMAT, self).text().as_bytes())
    }

    /// Read the key that [`Secret::save`] wrote. Refuses a file that others could have read.
    pub fn load(path: &Path) -> Result<Self> {
        KeyFile::read(path, FORMAT)?.0.secret(path)
    }

    /// Remove the key file at the end of a run; it is no error if there is none. The content is overwritten first, which a journal
    /// or a flash disk may render void.
    pub fn remove(path: &Path) -> Result<()> {
        let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
        if meta.is_file() {
            let file = std::fs::OpenOptions::new().write(true).open(path).map_err(|e| Error::io(path, e))?;
            (&file).write_all(&vec![0; meta.len() as usize]).map_err(|e| Error::io(path, e))?;
            file.sync_all().map_err(|e| Error::io(path, e))?;
        }
        std::fs::remove_file(path).map_err(|e| Error::io(path, e))
    }
}

/// One stream of secret words.
pub struct SecretStream(ChaCha20Rng);

impl SecretStream {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform on [0, 1), a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Uniform on `0..bound`, without bias. Panics when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing to choose from");
        below(bound, || self.0.next_u64())
    }

    /// True with probability `p`, exactly up to 2^-64. Always takes 64 bits.
    pub fn bernoulli(&mut self, p: f64) -> bool {
        let word = self.next_u64();
        threshold(p).is_none_or(|cut| word < cut)
    }

    /// One Gaussian in double precision, for a released scalar: `(z_1 + z_2 + z_3 + z_4) / 2`, each by Box and Muller from 106 bits. Whoever
    /// releases it rounds the sum it is part of to a grid of his own.
    pub fn gaussian(&mut self) -> f64 {
        let mut normal = || {
            // In (0, 1]: its logarithm is finite.
            let (u, v) = (1.0 - self.uniform(), self.uniform());
            (-2.0 * libm::log(u)).sqrt() * libm::cos(std::f64::consts::TAU * v)
        };
        (normal() + normal() + normal() + normal()) / 2.0
    }

    /// Shuffle in place, every order equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        shuffle(items, || self.0.next_u64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(s: &Secret, domain: SecretDomain, step: u32, part: u32) -> [u64; 4] {
        let mut stream = s.stream(domain, step, part);
        std::array::from_fn(|_| stream.next_u64())
    }

    #[test]
    fn streams_differ_and_repeat() {
        let s = Secret::insecure(5);
        let mut seen = std::collections::HashSet::new();
        for domain in [SecretDomain::Sampling, SecretDomain::Noise, SecretDomain::Flips] {
            for step in [0, 1, 2, 1000] {
                for part in [0, 1, 77] {
                    assert!(seen.insert(take(&s, domain, step, part)));
                    assert_eq!(take(&s, domain, step, part), take(&Secret::insecure(5), domain, step, part));
                    assert_ne!(take(&s, domain, step, part), take(&Secret::insecure(6), domain, step, part));
                }
            }
        }
        let (a, b) = (Secret::from_system().unwrap(), Secret::from_system().unwrap());
        assert_ne!(take(&a, SecretDomain::Noise, 0, 0), take(&b, SecretDomain::Noise, 0, 0));
        assert!(!a.is_insecure() && s.is_insecure());
    }

    #[test]
    fn one_key_serves_one_run_unless_it_is_known() {
        let (secret, known) = (Secret::from_system().unwrap(), Secret::insecure(1));
        secret.claim().unwrap();
        assert!(matches!(secret.claim(), Err(Error::Privacy(_))));
        known.claim().unwrap();
        known.claim().unwrap();
    }

    #[test]
    fn key_file_continues_the_stream_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.json");
        let s = Secret::from_system().unwrap();
        s.save(&path).unwrap();
        let back = Secret::load(&path).unwrap();
        assert_eq!(take(&s, SecretDomain::Sampling, 9, 1), take(&back, SecretDomain::Sampling, 9, 1));
        assert_eq!(s.is_insecure(), back.is_insecure());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
            let error = Secret::load(&path).err().unwrap().to_string();
            assert!(error.contains("644"), "{error}");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        let error = Secret::load(&path).err().unwrap().to_string();
        assert!(error.contains("cut short"), "{error}");
        Secret::remove(&path).unwrap();
        assert!(!path.exists());
        Secret::remove(&path).unwrap();
    }

    #[test]
    fn noise_is_gaussian_by_position_at_any_thread_count() {
        let s = Secret::insecure(1);
        let n = 400_000;
        let on = |threads| {
            let mut out = vec![0.0; n];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| s.add_noise_at(3, 0, 2.0, &mut out));
            out
        };
        let z = on(1);
        assert_eq!(z, on(2));
        assert_eq!(z, on(5));
        for (start, len) in [(1, 1), (255, 2), (256, 256), (16_383, 40_000), (300_000, 77)] {
            let mut part = vec![0.0; len];
            s.add_noise_at(3, start as u64, 2.0, &mut part);
            assert_eq!(part, z[start..start + len]);
        }
        let mut tensors = vec![vec![0.0; 100], vec![], vec![1.0; 17_000]];
        s.add_noise(3, 2.0, &mut tensors);
        assert_eq!(tensors[0], z[..100]);
        assert!(tensors[2].iter().zip(&z[100..]).all(|(x, n)| *x == 1.0 + n));

        let unit: Vec<f64> = z.iter().map(|&x| f64::from(x) / 2.0).collect();
        let count = n as f64;
        for (k, expected, variance) in
            [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0), (6, 15.0, 10_170.0)]
        {
            let moment = unit.iter().map(|x| x.powi(k)).sum::<f64>() / count;
            assert!((moment - expected).abs() < 6.0 * (variance / count).sqrt(), "moment {k}: {moment}");
        }
        for lag in [1, 128, 256] {
            let dot = unit.iter().zip(&unit[lag..]).map(|(a, b)| a * b).sum::<f64>() / count;
            assert!(dot.abs() < 6.0 / count.sqrt(), "lag {lag}: {dot}");
        }
    }

    #[test]
    fn draws_follow_their_laws() {
        let s = Secret::insecure(2);
        let mut stream = s.stream(SecretDomain::Flips, 0, 0);
        let hits = (0..100_000).filter(|_| stream.bernoulli(0.055)).count() as f64;
        assert!((hits - 5500.0).abs() < 6.0 * (5500.0f64 * 0.945).sqrt(), "{hits}");
        assert!((0..100).all(|_| stream.bernoulli(1.0)) && !(0..100).any(|_| stream.bernoulli(0.0)));
        let mean = (0..100_000).map(|_| stream.uniform()).sum::<f64>() / 1e5;
        assert!((mean - 0.5).abs() < 6.0 * (1.0 / 12e5f64).sqrt(), "{mean}");
        let draws: Vec<f64> = (0..20_000).map(|_| stream.gaussian()).collect();
        for (power, mean, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0f64)] {
            let found = draws.iter().map(|x| x.powi(power)).sum::<f64>() / 2e4;
            assert!((found - mean).abs() < 6.0 * (variance / 2e4).sqrt(), "moment {power}: {found}");
        }
        let mut orders = std::collections::HashMap::new();
        for _ in 0..6000 {
            let mut x = [0, 1, 2];
            stream.shuffle(&mut x);
            *orders.entry(x).or_insert(0.0) += 1.0;
        }
        assert_eq!(orders.len(), 6);
        assert!(orders.values().all(|c: &f64| (c - 1000.0).abs() < 6.0 * 833f64.sqrt()), "{orders:?}");
    }
}
