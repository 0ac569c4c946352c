//! A step's micro-batches, dealt out to the ranks of a run, and their sums put together again.
//!
//! A sample is cut into micro-batches as on one process, and they go round the ranks. What a micro-batch gives for a sum (an inner product, a loss) is a number by
//! itself, an f64; every rank gets all of them and adds them up in the order of the records. Those are the additions of one process in their order, so the sum has
//! its bits, however many ranks there are.
//!
//! Where every rank has a shard of its own (`method::shards`), nothing is dealt: a rank's sample is its own, and it gives one sum of it all, of one record or of none too.

use super::common::Common;
use super::sampler::Samples;
use super::shards::Shard;
use super::tally::{self, Private, Sums};
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::model::Batch;
use crate::ranks::{self, Alone, Ranks};
use crate::rng::Secret;
use std::sync::Arc;

/// Whom a run shares its work with: nobody, by default.
#[derive(Clone)]
pub struct Crew {
    ranks: Arc<dyn Ranks>,
    /// Whether losses and sizes of batches travel too: for logs that say so.
    tells: bool,
    /// This rank's own records, where no other has them.
    shard: Option<Arc<Shard>>,
}

impl Default for Crew {
    fn default() -> Self {
        Self { ranks: Arc::new(Alone), tells: true, shard: None }
    }
}

/// The sums of a sample, of which every rank computes some: each the sum over some micro-batches.
struct Deal<'a> {
    /// Whose each sum is, in the order in which they are added up.
    owners: Vec<usize>,
    /// The micro-batches of each of this rank's sums.
    own: Vec<Vec<&'a [usize]>>,
}

impl Crew {
    /// A crew of `ranks`. Losses and sizes of batches are told to all of them where `tells`.
    pub fn new(ranks: Arc<dyn Ranks>, tells: bool) -> Self {
        let tells = tells || ranks.size() == 1;
        Self { ranks, tells, shard: None }
    }

    /// A crew in which every rank has a shard.
    pub(super) fn sharded(ranks: Arc<dyn Ranks>, tells: bool, shard: Arc<Shard>) -> Self {
        Self { ranks, tells, shard: Some(shard) }
    }

    /// The batches of a run with this `secret`: of all records, or of those that are here.
    pub(super) fn samples<'a>(&'a self, common: &Common, secret: &'a Secret) -> Result<Samples<'a>> {
        match &self.shard {
            None => common.samples(secret),
            Some(shard) => shard.samples(common),
        }
    }

    /// How many records the batch has of which `own` are this rank's sample. For methods that promise nothing: it is told to all.
    pub(super) fn batch_size(&self, own: usize) -> Result<usize> {
        match &self.shard {
            None => Ok(own),
            Some(_) => Ok(ranks::total(&*self.ranks, "size of the batch", own as u64)? as usize),
        }
    }

    /// Deal out the micro-batches of `sample`, number `number` of its step: it decides who begins, so that many small samples go round too.
    fn deal<'a>(&self, sample: &'a [usize], micro_batch: u32, number: usize) -> Deal<'a> {
        let chunks = sample.chunks(micro_batch as usize);
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        if self.shard.is_some() {
            return Deal { owners: (0..size).collect(), own: vec![chunks.collect()] };
        }
        if size == 1 {
            return Deal { owners: vec![0], own: vec![chunks.collect()] };
        }
        let owners: Vec<usize> = (0..chunks.len()).map(|i| (number + i) % size).collect();
        let own = chunks.zip(&owners).filter(|(_, owner)| **owner == rank).map(|(chunk, _)| vec![chunk]).collect();
        Deal { owners, own }
    }

    /// One sample of which no inner product is asked: `work` computes this rank's micro-batches, and adds each to what the batch was.
    pub(super) fn batch<B: Backend>(
        &self,
        b: &B,
        sample: (&[usize], &[Example]),
        micro_batch: u32,
        work: impl FnMut(&Batch, &mut Sums<B>) -> Result<()>,
    ) -> Result<Private> {
        let mut totals = Totals::new(self);
        totals.sample(b, sample, micro_batch, 0, work)?;
        Ok(totals.add_up(b)?.pop().expect("one sample").1)
    }

    /// The whole numbers of all ranks, added up.
    pub(super) fn add(&self, own: &mut [i64]) -> Result<()> {
        self.ranks.add("sums of sketches", own)
    }

    /// The sums of `tensors` over all ranks, each of which has its own part of them.
    pub(super) fn sum<'a, B: Backend>(&self, b: &B, tensors: impl Iterator<Item = &'a mut B::Tensor>) -> Result<()>
    where
        B::Tensor: 'a,
    {
        if self.ranks.size() == 1 {
            return Ok(());
        }
        b.on_host(tensors.collect(), |parts| self.ranks.sum("sums of gradients", parts))
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

    /// The next sample, of `dots` inner products: deal out its micro-batches, and have this rank's computed by `work`, which adds each to its sums.
    pub(super) fn sample<B: Backend>(
        &mut self,
        b: &B,
        (sample, records): (&[usize], &[Example]),
        micro_batch: u32,
        dots: usize,
        mut work: impl FnMut(&Batch, &mut Sums<B>) -> Result<()>,
    ) -> Result<()> {
        let Deal { owners, own } = self.crew.deal(sample, micro_batch, self.samples.len());
        self.samples.push((dots, owners));
        for chunks in own {
            let mut sums = Sums::new(b, dots);
            for chunk in chunks {
                work(&batches::batch(chunk.iter().map(|&i| &records[i])), &mut sums)?;
            }
            let mut numbers = sums.read(b)?;
            numbers.truncate(self.width(dots));
            self.own.extend(numbers);
        }
        Ok(())
    }

    /// Numbers that travel for a sum.
    fn width(&self, dots: usize) -> usize {
        dots + if self.crew.tells { Private::NUMBERS } else { 0 }
    }

    /// The inner products of each sample, added up in the order of its micro-batches as one process does, with the rest.
    pub(super) fn add_up<B: Backend>(self, b: &B) -> Result<Vec<(Vec<f64>, Private)>> {
        let widths: Vec<usize> = self.samples.iter().map(|s| self.width(s.0)).collect();
        let all = match widths.iter().all(|w| *w == 0) {
            true => vec![Vec::new(); self.crew.ranks.size()],
            false => ranks::gather_numbers(&*self.crew.ranks, "inner products", &self.own)?,
        };
        let mut left: Vec<&[f64]> = all.iter().map(|of| &of[..]).collect();
        let mut out = Vec::with_capacity(self.samples.len());
        for ((dots, owners), width) in self.samples.into_iter().zip(widths) {
            let mut total = vec![0.0; width];
            for owner in owners {
                let Some((next, rest)) = left[owner].split_at_checked(width) else {
                    return Err(Error::Rank(format!("rank {owner} sent too few inner products")));
                };
                left[owner] = rest;
                for (sum, x) in total.iter_mut().zip(next) {
                    *sum = tally::sum(b, *sum, *x);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::ranks::threads::on_threads;

    /// Every micro-batch is one rank's, in the order of the records.
    #[test]
    fn micro_batches_go_round_and_none_is_lost() {
        let sample: Vec<usize> = (0..23).map(|i| 3 * i).collect();
        for size in 1..=5 {
            for number in 0..3 {
                let deals = on_threads(size, |ranks| {
                    let crew = Crew::new(ranks, false);
                    let deal = crew.deal(&sample, 4, number);
                    let own: Vec<Vec<usize>> = deal.own.iter().map(|chunks| chunks.concat()).collect();
                    assert!(size == 1 || deal.own.iter().all(|chunks| chunks.len() == 1));
                    Ok((deal.owners, own))
                });
                let deals: Vec<_> = deals.into_iter().map(Result::unwrap).collect();
                let owners = &deals[0].0;
                assert!(deals.iter().all(|d| d.0 == *owners));
                let mut left: Vec<_> = deals.iter().map(|d| d.1.iter()).collect();
                let whole: Vec<usize> = owners.iter().flat_map(|&o| left[o].next().unwrap().clone()).collect();
                assert_eq!(whole, sample);
                assert!(left.iter_mut().all(|l| l.next().is_none()));
                // Whoever begins is another one for the next sample.
                assert_eq!(owners[0], number % size);
            }
        }
    }

    /// Numbers whose sum depends on the order of addition: all ranks get that of one process, to the bit.
    #[test]
    fn sums_have_the_bits_of_one_process_at_any_number_of_ranks() {
        let numbers: Vec<f64> = (0..13).map(|i| (f64::from(i) * 0.7).sin() * 10f64.powi(i % 7 * 3 - 9)).collect();
        let sample: Vec<usize> = (0..numbers.len()).collect();
        let one = numbers.iter().fold(0.0, |sum, x| sum + x);
        let backward = numbers.iter().rev().fold(0.0, |sum, x| sum + x);
        assert_ne!(one.to_bits(), backward.to_bits(), "the test needs numbers whose sum has an order");
        for size in 2..=5 {
            let sums = on_threads(size, |ranks| {
                let crew = Crew::new(ranks, false);
                let mut totals = Totals::new(&crew);
                let deal = crew.deal(&sample, 1, 0);
                totals.own.extend(deal.own.iter().map(|chunks| numbers[chunks[0][0]]));
                totals.samples.push((1, deal.owners));
                Ok(totals.add_up(&Cpu::<f32>::new())?.remove(0).0[0].to_bits())
            });
            assert!(sums.into_iter().all(|sum| sum.unwrap() == one.to_bits()), "{size} ranks");
        }
    }

    /// Losses, records and tokens come along where all may know them, and only there.
    #[test]
    fn what_a_batch_was_travels_only_where_it_is_told() {
        for tells in [false, true] {
            let told = on_threads(2, |ranks| {
                let crew = Crew::new(ranks.clone(), tells);
                let (mut totals, b) = (Totals::new(&crew), Cpu::<f32>::new());
                let records = [Example::all(vec![1, 2]), Example::all(vec![3, 4, 5])];
                totals.sample(&b, (&[1, 0], &records), 1, 2, |batch, sums| sums.add(&b, batch, None))?;
                let (dots, private) = totals.add_up(&b)?.remove(0);
                Ok((dots, private.records, ranks))
            });
            for (dots, records, ranks) in told.into_iter().map(Result::unwrap) {
                assert_eq!((dots, records), (vec![0.0, 0.0], if tells { 2 } else { 0 }));
                let width = if tells { 2 + Private::NUMBERS } else { 2 };
                assert!(ranks.seen()[0].1.iter().all(|bytes| bytes.len() == 8 * width));
            }
        }
    }

    #[test]
    fn a_rank_that_gives_too_little_or_too_much_is_named() {
        for (extra, says) in [(-1i32, "rank 1 sent too few"), (1, "rank 1 sent more")] {
            let ends = on_threads(2, |ranks| {
                let crew = Crew::new(ranks.clone(), false);
                let sample = [0, 1, 2, 3];
                let mut totals = Totals::new(&crew);
                let deal = crew.deal(&sample, 1, 0);
                let own = deal.own.len() as i32 + if ranks.rank() == 1 { extra } else { 0 };
                totals.own = vec![1.0; own as usize];
                totals.samples.push((1, deal.owners));
                totals.add_up(&Cpu::<f32>::new()).map(drop)
            });
            assert!(ends.iter().all(|end| end.as_ref().unwrap_err().to_string().contains(says)));
        }
    }

    #[test]
    fn whole_numbers_and_tensors_add_up_over_ranks() {
        let sums = on_threads(3, |ranks| {
            let (crew, b) = (Crew::new(ranks.clone(), false), Cpu::<f32>::new());
            let rank = ranks.rank() as i64;
            let mut whole = [rank, 10 * rank, i64::MAX];
            crew.add(&mut whole)?;
            use crate::backend::Memory;
            let mut tensors = [b.upload(1, 2, vec![rank as f32, 1.0])?, b.upload(2, 1, vec![0.5, -1.0])?];
            crew.sum(&b, tensors.iter_mut())?;
            Ok((whole, tensors.iter().map(|x| b.download(x)).collect::<Result<Vec<_>>>()?))
        });
        for sum in sums {
            // What is beyond the integers stays at their end.
            assert_eq!(sum.unwrap(), ([3, 30, i64::MAX], vec![vec![3.0, 3.0], vec![1.5, -3.0]]));
        }
    }
}
