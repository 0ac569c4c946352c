//! Training as a library's user has it, for the tests of what is trained.

use crate::common::records;
use ferret::backend::Cpu;
use ferret::kernel::{Scalars, Stored};
use ferret::method::run::{GoOn, drive};
use ferret::method::{Method, Record, Task};
use ferret::model::Weights;
use ferret::rng::Secret;
use std::path::Path;

/// Records that these tests train on.
pub const N: u64 = 40;

/// Run to the end; with a folder, go on with what it holds and save one step later, which is the end or gives none.
pub fn run<T: Scalars>(base: &Weights<T>, method: &Method, saved: Option<&Path>) -> Option<(Weights<Stored>, Record)> {
    let (secret, records) = (Secret::insecure(9), records(&base.config, N, 2, 1));
    let task = Task::new(base.clone(), method.clone(), &secret, &records);
    let mut run = task.begin(Cpu::<f32>::new(), saved).unwrap();
    if let Some(root) = saved {
        run.step().unwrap();
        run.save(root).unwrap();
        if run.next().is_some() {
            return None;
        }
    }
    drive(&mut *run, &mut GoOn(|| Ok(()))).unwrap();
    let done = run.finish().unwrap();
    Some((done.weights, done.record))
}
