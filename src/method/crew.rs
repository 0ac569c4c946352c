//! A step's micro-batches, dealt out to the ranks of a run, and their sums put together again.
//!
//! A sample is cut into micro-batches as on one process, and they go round the ranks. What a micro-batch gives for a sum (an inner product, a loss) is a number by
//! itself, an f64; every rank gets all of them and adds them up in the order of the records. Those are the additions of one process in their order, so the sum has
//! its bits, however many ranks there are.

use super::tally::{Private, Sums, is_host};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ranks::{self, Alone, Ranks};
use std::sync::Arc;

/// Whom a run shares its work with: nobody, by default.
#[derive(Clone)]
pub struct Crew {
    ranks: Arc<dyn Ranks>,
    /// Whether losses and sizes of batches travel too: for logs that say so.
    tells: bool,
}

impl Default for Crew {
    fn default() -> Self {
        Self { ranks: Arc::new(Alone), tells: true }
    }
}

/// The sums of a sample, of which every rank computes some: each the sum over some micro-batches.
pub(super) struct Deal<'a> {
    /// Whose each sum is, in the order in which they are added up.
    owners: Vec<usize>,
    /// The micro-batches of each of this rank's sums.
    pub(super) own: Vec<Vec<&'a [usize]>>,
}

impl Crew {
    /// A crew of `ranks`. Losses and sizes of batches are told to all of them where `tells`.
    pub fn new(ranks: Arc<dyn Ranks>, tells: bool) -> Self {
        let tells = tells || ranks.size() == 1;
        Self { ranks, tells }
    }

    /// Deal out the micro-batches of `sample`, number `number` of its step: it decides who begins, so that many small samples go round too.
    pub(super) fn deal<'a>(&self, sample: &'a [usize], micro_batch: u32, number: usize) -> Deal<'a> {
        let chunks = sample.chunks(micro_batch as usize);
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        if size == 1 {
            return Deal { owners: vec![0], own: vec![chunks.collect()] };
        }
        let owners: Vec<usize> = (0..chunks.len()).map(|i| (number + i) % size).collect();
        let own = chunks.zip(&owners).filter(|(_, owner)| **owner == rank).map(|(chunk, _)| vec![chunk]).collect();
        Deal { owners, own }
    }

    /// The whole numbers of all ranks, added up.
    pub(super) fn add(&self, own: &mut [i64]) -> Result<()> {
        if self.ranks.size() == 1 {
            return Ok(());
        }
        let all = self.ranks.gather("sums of sketches", bytemuck::cast_slice(own))?;
        own.fill(0);
        for bytes in all {
            if bytes.len() != 8 * own.len() {
                return Err(Error::Rank(format!("a rank sent {} bytes for {} sums", bytes.len(), own.len())));
            }
            for (sum, x) in own.iter_mut().zip(bytes.chunks_exact(8)) {
                *sum = sum.saturating_add(i64::from_ne_bytes(x.try_into().expect("8 bytes")));
            }
        }
        Ok(())
    }

    /// The sums of `tensors` over all ranks, each of which has its own part of them.
    pub(super) fn sum<'a, B: Backend>(&self, b: &B, tensors: impl Iterator<Item = &'a mut B::Tensor>) -> Result<()>
    where
        B::Tensor: 'a,
    {
        if self.ranks.size() == 1 {
            return Ok(());
        }
        let what = "sums of gradients";
        if is_host(b) {
            let mut parts: Vec<&mut [f32]> = tensors.map(|x| b.host_mut(x).expect("host memory")).collect();
            return self.ranks.sum(what, &mut parts);
        }
        let tensors: Vec<&mut B::Tensor> = tensors.collect();
        let mut parts = b.download_all(&tensors.iter().map(|x| &**x).collect::<Vec<_>>())?;
        self.ranks.sum(what, &mut parts.iter_mut().map(|x| &mut x[..]).collect::<Vec<_>>())?;
        for (x, sum) in tensors.into_iter().zip(parts) {
            let (rows, cols) = b.shape(x);
            *x = b.upload(rows, cols, sum)?;
        }
        Ok(())
    }
}

/// What a step's samples add up to.
pub(super) struct Totals<'a> {
    crew: &'a Crew,
    /// Inner products of each sample, and whose its sums are.
    samples: Vec<(usize, Vec<usize>)>,
    /// This rank's numbers, end to end.
    own: Vec<f64>,
}

impl<'a> Totals<'a> {
    /// Nothing yet.
    pub(super) fn new(crew: &'a Crew) -> Self {
        Self { crew, samples: Vec::new(), own: Vec::new() }
    }

    /// The next sample, of `dots` inner products, has been dealt out so. Its [`Totals::push`] follow.
    pub(super) fn begin(&mut self, dots: usize, deal: &Deal) {
        self.samples.push((dots, deal.owners.clone()));
    }

    /// One of this rank's sums of the sample that began last.
    pub(super) fn push<B: Backend>(&mut self, b: &B, sums: Sums<B>) -> Result<()> {
        let (dots, _) = self.samples.last().expect("a sample that began");
        let mut numbers = sums.read(b)?;
        numbers.truncate(self.width(*dots));
        self.own.extend(numbers);
        Ok(())
    }

    /// Numbers that travel for a sum.
    fn width(&self, dots: usize) -> usize {
        dots + if self.crew.tells { Private::NUMBERS } else { 0 }
    }

    /// The inner products of each sample, added up in the order of its micro-batches, with the rest. On a device one process adds up in f32: then so
    /// does this.
    pub(super) fn add_up<B: Backend>(self, b: &B) -> Result<Vec<(Vec<f64>, Private)>> {
        let widths: Vec<usize> = self.samples.iter().map(|s| self.width(s.0)).collect();
        let all = match widths.iter().all(|w| *w == 0) {
            true => vec![Vec::new(); self.crew.ranks.size()],
            false => ranks::gather_numbers(&*self.crew.ranks, "inner products", &self.own)?,
        };
        let mut left: Vec<&[f64]> = all.iter().map(|of| &of[..]).collect();
        let host = is_host(b);
        let mut out = Vec::with_capacity(self.samples.len());
        for ((dots, owners), width) in self.samples.into_iter().zip(widths) {
            let mut total = vec![0.0; width];
            for owner in owners {
                let Some((next, rest)) = left[owner].split_at_checked(width) else {
                    return Err(Error::Rank(format!("rank {owner} sent too few inner products")));
                };
                left[owner] = rest;
                for (sum, x) in total.iter_mut().zip(next) {
                    *sum = if host { *sum + x } else { f64::from(*sum as f32 + *x as f32) };
                }
            }
            out.push(Private::split(total, dots));
        }
        match left.iter().position(|rest| !rest.is_empty()) {
            None => Ok(out),
            Some(rank) => Err(Error::Rank(format!("rank {rank} sent more inner products than it has"))),
        }
    }
}
