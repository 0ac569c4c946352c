//! Ranks as the system's MPI starts and connects them.
//!
//! Every exchange is two steps: a word of 32 bytes from each rank (all is well or not, which exchange, how many bytes, whether it was asked to stop),
//! then what was to be exchanged; or, where all is not well, the sentences of those who say so. All steps are non-blocking and are asked after until
//! they are over: a wait can end, and costs little of a processor that computes.

mod reduce;

use super::neighbours::{is_alive, machine, neighbours};
use super::{Fact, Ranks, agree};
use crate::error::{Error, Result};
use crate::hash;
use crate::isa::{self, Isa};
use ::mpi::collective::CommunicatorCollectives;
use ::mpi::datatype::PartitionMut;
use ::mpi::environment::{Threading, Universe};
use ::mpi::request::{Request, Scope, scope};
use ::mpi::topology::{Communicator, SimpleCommunicator};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What launchers set for the processes that they start. A process that none of them names is alone, and MPI is never begun.
const LAUNCHED: [&str; 5] = ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_RANK"];

/// Bytes of one message, far below what 31 bits count.
const MOST_BYTES: usize = 1 << 26;

/// Seconds that a rank waits for others, unless `FERRET_MPI_PATIENCE` says otherwise.
const PATIENCE: u64 = 1800;

/// Called with a sentence when the others are lost and nothing can be waited for any more; ends the process.
pub type Lost = fn(&str) -> !;

/// The ranks of an MPI run.
pub struct Mpi {
    world: Mutex<Option<World>>,
    rank: usize,
    size: usize,
    /// Whether this rank was asked to stop, and whether all know that one was.
    asked: AtomicBool,
    stop: AtomicBool,
    /// Whether an error has ended the run for all.
    failed: AtomicBool,
    /// Whether ranks may go: nobody watches over them any more.
    over: Arc<AtomicBool>,
    patience: Duration,
    lost: Lost,
}

struct World {
    comm: SimpleCommunicator,
    // Dropped last: that ends MPI.
    _universe: Universe,
}

// SAFETY: MPI is begun with `Serialized`: any thread may call, one at a time, and the mutex around it sees to that.
unsafe impl Send for World {}

/// A rank's word at the beginning of an exchange.
#[derive(Clone, Copy)]
struct Word {
    well: bool,
    tag: u64,
    bytes: usize,
    asked: bool,
}

impl Mpi {
    /// Join the ranks that a launcher has started: none where it has not, or has started only one.
    pub fn open(lost: Lost) -> Result<Option<Self>> {
        if !LAUNCHED.iter().any(|name| std::env::var_os(name).is_some()) {
            return Ok(None);
        }
        let patience = match std::env::var("FERRET_MPI_PATIENCE") {
            Err(_) => PATIENCE,
            Ok(text) => text.trim().parse().ok().filter(|s| *s > 0).ok_or_else(|| {
                Error::usage(format!("FERRET_MPI_PATIENCE is {text:?}, expected a number of seconds from 1"))
            })?,
        };
        let Some((universe, threading)) = ::mpi::initialize_with_threading(Threading::Serialized) else {
            return Err(Error::Rank("MPI has been begun in this process already".into()));
        };
        if threading < Threading::Serialized {
            return Err(Error::Rank("this MPI allows one thread only: build it with support for threads".into()));
        }
        let comm = universe.world();
        let (rank, size) = (comm.rank() as usize, comm.size() as usize);
        if size == 1 {
            return Ok(None);
        }
        Ok(Some(Self {
            world: Mutex::new(Some(World { comm, _universe: universe })),
            rank,
            size,
            asked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            over: Arc::new(AtomicBool::new(false)),
            patience: Duration::from_secs(patience),
            lost,
        }))
    }

    /// The first thing to do, before anything is computed: all ranks agree on the highest instruction set that they have in common, look after each other from then on, and
    /// end with a sentence where they are not the same program.
    pub fn greet(&self) -> Result<()> {
        agree(self, "program", &program()?)?;
        let sets =
            self.gather("instruction sets", isa::usable().map(Isa::name).collect::<Vec<_>>().join(" ").as_bytes())?;
        let sets: Vec<String> = sets.into_iter().map(|set| String::from_utf8_lossy(&set).into_owned()).collect();
        isa::limit(common(&sets))?;
        agree(self, "multiply-add", &[("processor: fused multiply-add", isa::fuses().to_string())])?;
        self.watch()
    }

    /// Look after the processes of this machine, from now on: one that is gone will not come to the next exchange.
    fn watch(&self) -> Result<()> {
        let all = self.gather("processes", format!("{}\n{}", machine(), std::process::id()).as_bytes())?;
        let all: Vec<String> = all.into_iter().map(|text| String::from_utf8_lossy(&text).into_owned()).collect();
        let peers: Vec<(usize, u32)> = neighbours(self.rank, &all);
        if peers.is_empty() {
            return Ok(());
        }
        let (over, lost, rank, size) = (self.over.clone(), self.lost, self.rank, self.size);
        std::thread::spawn(move || {
            loop {
                let gone = peers.iter().find(|(_, process)| !is_alive(*process));
                // In this order: whoever goes in peace goes only after every rank has said that the run is over.
                if over.load(Ordering::SeqCst) {
                    return;
                }
                if let Some((other, process)) = gone {
                    lost(&format!(
                        "rank {rank} of {size}: rank {other} (process {process}) has died, and the run with it; what was saved last is whole, and `resume` continues at any number of ranks"
                    ));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Ok(())
    }

    /// Wait for a step of an exchange, at most for `patience`.
    fn wait<'a, D: ?Sized, S: Scope<'a>>(&self, request: Request<'a, D, S>, what: &str, patience: Option<Duration>) {
        let (start, mut request) = (Instant::now(), request);
        loop {
            match request.test() {
                Ok(_) => return,
                Err(unfinished) => request = unfinished,
            }
            let waited = start.elapsed();
            if patience.is_some_and(|most| waited > most) {
                (self.lost)(&format!(
                    "rank {} of {}: waited {} s for the others ({what}): one of them hangs, or the network does; what was saved last is whole, and `resume` continues; \
                     FERRET_MPI_PATIENCE is how many seconds to wait",
                    self.rank,
                    self.size,
                    waited.as_secs()
                ));
            }
            // Asking costs a processor that others may compute on: not more often than some tenths of what was waited already.
            match waited < Duration::from_micros(100) {
                true => std::thread::yield_now(),
                false => std::thread::sleep((waited / 10).clamp(Duration::from_micros(20), Duration::from_millis(1))),
            }
        }
    }

    /// Everyone's word. An error, and the same for all, where one is not well or ranks are at different exchanges.
    fn meet(&self, world: &World, what: &str, own: std::result::Result<usize, &str>) -> Result<Vec<Word>> {
        let patience = (what != END).then_some(self.patience);
        let asked = self.asked.load(Ordering::SeqCst);
        let tag = u64::from_str_radix(&hash::sha256(what)[..16], 16).expect("hexadecimal digits");
        let bytes = own.unwrap_or_else(str::len);
        let word = [u64::from(own.is_ok()), tag, bytes as u64, u64::from(asked)];
        let mut all = vec![0u64; 4 * self.size];
        scope(|s| self.wait(world.comm.immediate_all_gather_into(s, &word[..], &mut all[..]), what, patience));
        let words: Vec<Word> = all
            .chunks(4)
            .map(|w| Word { well: w[0] == 1, tag: w[1], bytes: w[2] as usize, asked: w[3] == 1 })
            .collect();
        if words.iter().any(|w| w.asked) {
            self.stop.store(true, Ordering::SeqCst);
        }
        if words.iter().all(|w| w.well) {
            if words.iter().any(|w| w.tag != tag) {
                self.failed.store(true, Ordering::SeqCst);
                return Err(Error::Rank(format!(
                    "the ranks are at different places of the run: rank {} at \"{what}\"",
                    self.rank
                )));
            }
            return Ok(words);
        }
        self.failed.store(true, Ordering::SeqCst);
        let sentence = own.err().unwrap_or_default();
        let counts: Vec<usize> = words.iter().map(|w| if w.well { 0 } else { w.bytes }).collect();
        let said = self.exchange(world, what, sentence.as_bytes(), &counts);
        let (rank, said) = said.iter().enumerate().find(|(_, said)| !said.is_empty()).expect("one is not well");
        Err(Error::Rank(format!("rank {rank}: {}", String::from_utf8_lossy(said))))
    }

    /// What every rank has, of as many bytes as `counts` says.
    fn exchange(&self, world: &World, what: &str, own: &[u8], counts: &[usize]) -> Vec<Vec<u8>> {
        let most = counts.iter().copied().max().unwrap_or(0);
        let mut out: Vec<Vec<u8>> = counts.iter().map(|&n| Vec::with_capacity(n)).collect();
        let step = MOST_BYTES / self.size;
        for start in (0..most).step_by(step) {
            let sizes: Vec<i32> = counts.iter().map(|&n| n.saturating_sub(start).min(step) as i32).collect();
            let places: Vec<i32> = sizes.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect();
            let mut all = vec![0u8; sizes.iter().sum::<i32>() as usize];
            let mine = &own[start.min(own.len())..(start + step).min(own.len())];
            {
                let mut parts = PartitionMut::new(&mut all[..], &sizes[..], &places[..]);
                scope(|s| {
                    let request = world.comm.immediate_all_gather_varcount_into(s, mine, &mut parts);
                    self.wait(request, what, Some(self.patience));
                });
            }
            for (out, (&at, &n)) in out.iter_mut().zip(places.iter().zip(&sizes)) {
                out.extend(&all[at as usize..(at + n) as usize]);
            }
        }
        out
    }

    fn with<T>(&self, work: impl FnOnce(&World) -> Result<T>) -> Result<T> {
        match &*self.world.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(world) => work(world),
            None => Err(Error::Rank("the ranks have parted already".into())),
        }
    }

    /// Part: all wait for each other, so that none is missed, and MPI ends.
    fn leave(&self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(world) = self.world.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.wait(world.comm.immediate_barrier(), "parting", Some(self.patience));
        }
    }
}

/// The last exchange. Others may have work left, of any length: there is no end to this wait but theirs.
const END: &str = "the end";

impl Ranks for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gather(&self, what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.with(|world| {
            let words = self.meet(world, what, Ok(own.len()))?;
            let counts: Vec<usize> = words.iter().map(|w| w.bytes).collect();
            Ok(self.exchange(world, what, own, &counts))
        })
    }

    fn sum(&self, what: &str, parts: &mut [&mut [f32]]) -> Result<()> {
        self.reduce(what, parts, |a, b| a + b)
    }

    fn add(&self, what: &str, numbers: &mut [i64]) -> Result<()> {
        self.reduce(what, &mut [numbers], i64::saturating_add)
    }

    fn stop(&self, asked: bool) -> bool {
        if asked {
            self.asked.store(true, Ordering::SeqCst);
        }
        self.stop.load(Ordering::SeqCst)
    }

    fn fail(&self, sentence: &str) {
        if !self.failed.load(Ordering::SeqCst) {
            // The sentence is this rank's own, whatever others have to say.
            let _ = self.with(|world| self.meet(world, "an error", Err(sentence)));
        }
        self.leave();
    }

    fn close(&self) -> Result<()> {
        let done = self.with(|world| self.meet(world, END, Ok(0)));
        self.leave();
        done.map(drop)
    }
}

/// What tells this program from others.
fn program() -> Result<Vec<Fact>> {
    let path = std::env::current_exe().map_err(|e| Error::io("the program's own file", e))?;
    let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, e))?;
    Ok(vec![
        ("version of this program", env!("CARGO_PKG_VERSION").into()),
        ("commit of this program", crate::COMMIT.unwrap_or("not known").into()),
        ("build of this program, by its SHA-256,", hash::sha256(bytes)),
    ])
}

/// The highest instruction set that is in all of `sets`, names apart by blanks.
fn common(sets: &[String]) -> Isa {
    let everywhere = |isa: &Isa| sets.iter().all(|set| set.split(' ').any(|name| name == isa.name()));
    Isa::ALL.into_iter().rfind(everywhere).unwrap_or(Isa::Portable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_instructions_that_all_have_are_chosen() {
        let set = |text: &str| text.to_owned();
        assert_eq!(common(&[set("portable avx2 avx512"), set("portable avx2")]), Isa::Avx2);
        assert_eq!(common(&[set("portable neon"), set("portable avx2")]), Isa::Portable);
        assert_eq!(common(&[set(""), set("portable avx2")]), Isa::Portable);
    }
}
