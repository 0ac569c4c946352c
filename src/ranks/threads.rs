//! Ranks that are threads of one process: for tests of what ranks share, where no launcher is needed.

use super::Ranks;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What every rank has given at the exchange that is under way, and how many have taken it.
#[derive(Default)]
struct Table {
    /// What it is called, the bytes, and whether the rank was asked to stop.
    given: Vec<Option<(String, Vec<u8>, bool)>>,
    taken: usize,
    /// The sentence of a rank that failed.
    failed: Option<String>,
    /// Every exchange so far: what it was called, and what each rank gave.
    seen: Vec<(String, Vec<Vec<u8>>)>,
}

/// One of several ranks.
pub(crate) struct Thread {
    rank: usize,
    size: usize,
    table: Arc<(Mutex<Table>, Condvar)>,
    /// Whether this rank was asked to stop, and whether all know that one was.
    asked: AtomicBool,
    stop: AtomicBool,
}

/// `size` ranks.
pub(crate) fn threads(size: usize) -> Vec<Arc<Thread>> {
    let table = Arc::new((Mutex::new(Table { given: vec![None; size], ..Table::default() }), Condvar::new()));
    let no = || AtomicBool::new(false);
    (0..size).map(|rank| Arc::new(Thread { rank, size, table: table.clone(), asked: no(), stop: no() })).collect()
}

/// Run `work` on `size` ranks at once; what each gave, or the error of whoever failed, which ends the others too.
pub(crate) fn on_threads<T: Send>(size: usize, work: impl Fn(Arc<Thread>) -> Result<T> + Sync) -> Vec<Result<T>> {
    on(&threads(size), work)
}

/// [`on_threads`] on ranks that are there.
pub(crate) fn on<T: Send>(ranks: &[Arc<Thread>], work: impl Fn(Arc<Thread>) -> Result<T> + Sync) -> Vec<Result<T>> {
    let one = |rank: &Arc<Thread>| {
        let done = work(rank.clone());
        if let Err(e) = &done {
            rank.fail(&e.to_string());
        }
        done
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| one(rank))).collect();
        all.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

impl Thread {
    /// Wait until `ready`, or until a rank has failed.
    fn until<'a>(
        &self,
        mut table: MutexGuard<'a, Table>,
        what: &str,
        ready: impl Fn(&Table, usize) -> bool,
    ) -> Result<MutexGuard<'a, Table>> {
        let start = Instant::now();
        while !ready(&table, self.rank) {
            if let Some(sentence) = &table.failed {
                return Err(Error::Rank(sentence.clone()));
            }
            assert!(start.elapsed() < Duration::from_secs(120), "rank {} waits for ever at {what:?}", self.rank);
            table = self.table.1.wait_timeout(table, Duration::from_millis(50)).unwrap().0;
        }
        Ok(table)
    }

    /// The sums of all ranks' numbers, added in the order of ranks.
    fn reduce<T: bytemuck::Pod>(&self, what: &str, parts: &mut [&mut [T]], add: fn(T, T) -> T) -> Result<()> {
        let own: Vec<T> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let all = self.gather(what, bytemuck::cast_slice(&own))?;
        let all: Vec<Vec<T>> = all.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect();
        for (at, x) in parts.iter_mut().flat_map(|part| part.iter_mut()).enumerate() {
            *x = all.iter().map(|of| of[at]).reduce(add).expect("a rank");
        }
        Ok(())
    }

    /// Every exchange so far: what it was called, and what each rank gave.
    pub(crate) fn seen(&self) -> Vec<(String, Vec<Vec<u8>>)> {
        self.table.0.lock().unwrap().seen.clone()
    }
}

impl Ranks for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gather(&self, what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (mutex, changed) = &*self.table;
        let mut table = mutex.lock().unwrap();
        // Those of the exchange before have all taken theirs once this rank's place is free again.
        table = self.until(table, what, |t, rank| t.given[rank].is_none())?;
        table.given[self.rank] = Some((what.to_owned(), own.to_vec(), self.asked.load(Ordering::SeqCst)));
        changed.notify_all();
        table = self.until(table, what, |t, _| t.given.iter().all(Option::is_some))?;
        let all: Vec<(String, Vec<u8>, bool)> = table.given.iter().flatten().cloned().collect();
        table.taken += 1;
        if table.taken == self.size {
            let bytes = all.iter().map(|(_, bytes, _)| bytes.clone()).collect();
            table.seen.push((what.to_owned(), bytes));
            table.given.iter_mut().for_each(|given| *given = None);
            table.taken = 0;
            changed.notify_all();
        }
        if all.iter().any(|of| of.2) {
            self.stop.store(true, Ordering::SeqCst);
        }
        match all.iter().find(|(name, ..)| name != what) {
            Some((name, ..)) => Err(Error::Rank(format!("one rank is at {name:?}, another at {what:?}"))),
            None => Ok(all.into_iter().map(|(_, bytes, _)| bytes).collect()),
        }
    }

    fn sum(&self, what: &str, parts: &mut [&mut [f32]]) -> Result<()> {
        self.reduce(what, parts, |a, b| a + b)
    }

    fn add(&self, what: &str, numbers: &mut [i64]) -> Result<()> {
        self.reduce(what, &mut [numbers], i64::saturating_add)
    }

    fn stop(&self, asked: bool) -> bool {
        self.asked.fetch_or(asked, Ordering::SeqCst);
        self.stop.load(Ordering::SeqCst)
    }

    fn fail(&self, sentence: &str) {
        let (mutex, changed) = &*self.table;
        mutex.lock().unwrap().failed.get_or_insert(sentence.to_owned());
        changed.notify_all();
    }
}
