//! Independent pieces of work, dealt out to the workers of all ranks as these are free.
//!
//! All ranks meet again and again. Each says how many of its workers are free and gives one piece that it has finished; then everyone deals the next pieces to
//! free workers by the same rule. So nobody directs, a piece is computed once, and its bytes reach every rank, in the same order on all of them. Which rank computes which
//! piece depends on who is faster: what a piece gives must not.

use super::Ranks;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a rank that has nothing to tell waits before it meets the others.
const TICK: Duration = Duration::from_millis(10);

/// What a piece of work asks to know whether to give up.
pub type StopCheck<'a> = &'a (dyn Fn() -> bool + Sync);

/// Computes a piece.
type Work<'a> = &'a (dyn Fn(usize, StopCheck) -> Result<Vec<u8>> + Sync);

/// What the workers of this rank have before and behind them.
#[derive(Default)]
struct Desk {
    to_do: VecDeque<usize>,
    /// Pieces that a worker has in hand.
    in_hand: usize,
    finished: VecDeque<(usize, Result<Vec<u8>>)>,
    over: bool,
}

struct Room {
    desk: Mutex<Desk>,
    changed: Condvar,
    /// Whether pieces that are under way should be given up.
    halt: AtomicBool,
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One worker: takes pieces until all is over.
    fn work(&self, threads: Option<usize>, work: Work) {
        let pool = threads.map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build());
        let halted = || self.halt.load(Ordering::SeqCst);
        loop {
            let mut desk = self.lock();
            let piece = loop {
                if desk.over {
                    return;
                }
                if let Some(piece) = desk.to_do.pop_front() {
                    desk.in_hand += 1;
                    break piece;
                }
                desk = self.changed.wait(desk).unwrap_or_else(PoisonError::into_inner);
            };
            drop(desk);
            let mut hand = Hand { room: self, piece, result: None };
            hand.result = Some(match &pool {
                None => work(piece, &halted),
                Some(Ok(pool)) => pool.install(|| work(piece, &halted)),
                Some(Err(e)) => Err(Error::usage(format!("no threads for a piece of work: {e}"))),
            });
        }
    }
}

/// A piece in a worker's hand: it is put down whatever happens, or the others would wait for it for ever.
struct Hand<'a> {
    room: &'a Room,
    piece: usize,
    result: Option<Result<Vec<u8>>>,
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or_else(|| Err(Error::usage("a piece of work panicked")));
        let mut desk = self.room.lock();
        desk.in_hand -= 1;
        desk.finished.push_back((self.piece, result));
        self.room.changed.notify_all();
    }
}

/// Ends the workers when the meeting ends, however it does.
struct Closing<'a>(&'a Room);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.halt.store(true, Ordering::SeqCst);
        self.0.lock().over = true;
        self.0.changed.notify_all();
    }
}

/// Compute `work(0, ..) .. work(count - 1, ..)`, each once, by `workers` workers of this rank and those of the others, each on its share of the threads. `done`
/// is called on every rank with every piece, in the same order. `work` also gets what to ask whether to give up. After an error nothing new is begun.
///
/// All ranks call this with the same `count`; `workers` is each rank's own.
pub fn spread(
    ranks: &dyn Ranks,
    what: &str,
    count: usize,
    workers: usize,
    work: impl Fn(usize, StopCheck) -> Result<Vec<u8>> + Sync,
    mut done: impl FnMut(usize, Vec<u8>) -> Result<()>,
) -> Result<()> {
    let workers = workers.clamp(1, count.max(1));
    let threads = (workers > 1).then(|| (rayon::current_num_threads() / workers).max(1));
    let room = Room { desk: Mutex::default(), changed: Condvar::new(), halt: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let closing = Closing(&room);
        for _ in 0..workers {
            scope.spawn(|| room.work(threads, &work));
        }
        let (mut dealt, mut over) = (0, 0);
        while over < count {
            let mut desk = room.lock();
            if desk.finished.is_empty() && desk.in_hand + desk.to_do.len() > 0 {
                desk = room.changed.wait_timeout(desk, TICK).unwrap_or_else(PoisonError::into_inner).0;
            }
            let free = workers.saturating_sub(desk.in_hand + desk.to_do.len());
            let finished = desk.finished.pop_front();
            drop(desk);
            let mut message = (free as u64).to_le_bytes().to_vec();
            if let Some((piece, result)) = finished {
                message.extend((piece as u64).to_le_bytes());
                message.extend(result?);
            }
            let mut free = Vec::with_capacity(ranks.size());
            for message in ranks.gather(what, &message)? {
                let number =
                    |at: usize| message.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
                let broken = || Error::Rank(format!("a rank sent no {what}"));
                free.push(number(0).ok_or_else(broken)?);
                if message.len() > 8 {
                    let piece = number(8).filter(|piece| *piece < count as u64).ok_or_else(broken)?;
                    over += 1;
                    done(piece as usize, message[16..].to_vec())?;
                }
            }
            // One a rank and round, so that few pieces are shared by many ranks.
            while dealt < count && free.iter().any(|free| *free > 0) {
                for (rank, free) in free.iter_mut().enumerate().filter(|(_, free)| **free > 0) {
                    if dealt < count && rank == ranks.rank() {
                        room.lock().to_do.push_back(dealt);
                        room.changed.notify_all();
                    }
                    dealt += usize::from(dealt < count);
                    *free -= 1;
                }
            }
        }
        drop(closing);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::Alone;
    use crate::ranks::threads::on_threads;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_piece_is_computed_once_and_reaches_every_rank() {
        for (size, workers, count) in [(1, 1, 5), (1, 3, 7), (2, 1, 9), (3, 2, 20), (4, 1, 2), (2, 2, 0)] {
            let times: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            let all = on_threads(size, |ranks| {
                let (mut got, mut order) = (vec![Vec::new(); count], Vec::new());
                let work = |piece: usize, _: StopCheck| {
                    times[piece].fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis((piece % 3) as u64));
                    Ok(format!("piece {piece}").into_bytes())
                };
                spread(&*ranks, "pieces", count, workers, work, |piece, bytes| {
                    got[piece] = bytes;
                    order.push(piece);
                    Ok(())
                })?;
                Ok((got, order))
            });
            let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
            for (got, order) in &all {
                assert!(got.iter().enumerate().all(|(i, bytes)| *bytes == format!("piece {i}").into_bytes()));
                assert_eq!(order, &all[0].1);
            }
            assert!(times.iter().all(|t| t.load(Ordering::SeqCst) == 1));
        }
    }

    /// Each of two ranks that both have time gets some.
    #[test]
    fn pieces_go_to_whoever_is_free() {
        let by = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let done = on_threads(2, |ranks| {
            let work = |_: usize, _: StopCheck| {
                by[ranks.rank()].fetch_add(1, Ordering::SeqCst);
                // The second rank is far slower.
                std::thread::sleep(Duration::from_millis(if ranks.rank() == 0 { 2 } else { 150 }));
                Ok(Vec::new())
            };
            spread(&*ranks, "pieces", 12, 1, work, |_, _| Ok(()))
        });
        assert!(done.iter().all(Result::is_ok));
        let by = by.map(|n| n.load(Ordering::SeqCst));
        assert!(by[1] >= 1 && by[0] > 2 * by[1], "{by:?}");
    }

    #[test]
    fn an_error_ends_all_and_what_is_under_way_is_given_up() {
        for size in [1, 3] {
            let done = on_threads(size, |ranks| {
                let work = |piece: usize, halted: StopCheck| {
                    if piece == 1 {
                        return Err(Error::usage("piece one is broken"));
                    }
                    // Would take for ever.
                    while !halted() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(Error::usage("given up"))
                };
                spread(&*ranks, "pieces", 6, 2, work, |_, _| Ok(()))
            });
            assert!(done.iter().all(|d| d.as_ref().unwrap_err().to_string().contains("piece one is broken")));
        }
        let refused = spread(&Alone, "pieces", 3, 1, |_, _| Ok(Vec::new()), |_, _| Err(Error::usage("no room")));
        assert_eq!(refused.unwrap_err().to_string(), "no room");
    }
}
