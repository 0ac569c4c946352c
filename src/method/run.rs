//! One run, whatever its method, and the one loop that drives it.
//!
//! A [`Run`] is begun from a [`Task`] ([`Task::begin`]): a base model, a [`Method`] with its settings, a secret generator and records. What it
//! will do is planned before a record is touched; each [`Run::step`] computes, releases and updates; [`Run::save`] writes what
//! resuming needs, and [`Run::finish`] gives the weights and the file that says how they came about. The method's own statement
//! ([`Method::statement`]) follows from its settings alone, so that it is known before the run.
//!
//! [`drive`] is the loop: it asks a [`Watch`] whether to go on, makes the next step that computes anything, and tells the watch. Training
//! into a folder ([`super::training`]), studies, shadow models and the leakage meter differ in what they watch for, and in nothing else.
//!
//! A new method is one entry of [`Method`] and one implementation of [`Run`].

use super::boundary::Sensitive;
use super::crew::Crew;
use super::list::{Method, Record};
use super::tally::Private;
use crate::backend::Backend;
use crate::data::Example;
use crate::error::{Error, Result};
use crate::kernel::{Scalars, Stored};
use crate::model::{Decoder, Weights, checkpoint};
use crate::rng::Secret;
use std::path::Path;

/// What a run is made of. `S` is what it is told: the settings of one method, or one of the list. `T` is the form of the base model's tensors: those
/// that a run never changes keep it.
pub struct Task<'a, S = Method, T = Vec<f32>> {
    /// The model it begins at, in f32 or as it is stored.
    pub base: Weights<T>,
    /// SHA-256 of the base model's tensors.
    pub base_sha256: String,
    /// What it is told.
    pub settings: S,
    /// Stop after so many of the planned steps; none: make them all.
    pub stop: Option<u32>,
    /// The generator of samples, flips and noise.
    pub secret: &'a Secret,
    /// What it learns from.
    pub records: Sensitive<&'a [Example]>,
}

impl<'a, S, T: Scalars> Task<'a, S, T> {
    /// All planned steps from `base`, whose hash is taken here.
    pub fn new(base: Weights<T>, settings: S, secret: &'a Secret, records: &'a [Example]) -> Self {
        let base_sha256 = checkpoint::tensors_sha256(&base);
        Self { base, base_sha256, settings, stop: None, secret, records: Sensitive::new(records) }
    }
}

impl<'a, S, T> Task<'a, S, T> {
    /// The same for other settings.
    pub fn with<U>(self, settings: U) -> Task<'a, U, T> {
        let Self { base, base_sha256, settings: _, stop, secret, records } = self;
        Task { base, base_sha256, settings, stop, secret, records }
    }
}

/// What a computed step may tell.
pub struct Step {
    /// Its number among the planned ones, from 0.
    pub step: u32,
    /// The groups that fired: public. Empty for methods that update everything.
    pub groups: Vec<u32>,
    /// What the step's batch gave away besides the release; for logs that say so.
    pub private: Sensitive<Private>,
}

/// What a run ends with.
pub struct Conclusion<B> {
    /// The tuned weights: those that were never changed as they were stored, the others in f32.
    pub weights: Weights<Stored>,
    /// How they came about.
    pub record: Record,
    /// Where they were computed, to compute on.
    pub backend: B,
}

/// A run in progress.
pub trait Run<B: Backend> {
    /// The next step that computes something; none when the run is over.
    fn next(&self) -> Option<u32>;
    /// How many steps that compute something are over, and how many there are.
    fn progress(&self) -> (u64, u64);
    /// Compute, release and apply the next step; none when there is none.
    fn step(&mut self) -> Result<Option<Step>>;
    /// The decoder as of the last computed step; idle steps since then are not in it.
    fn decoder(&self) -> &Decoder<B>;
    /// Save memory by running blocks again in backward; the bits stay the same. See [`Decoder::recompute`].
    fn recompute(&mut self, _on: bool) {}
    /// Share the work with other ranks, all of which make the same calls. Where a run passes this over, every rank computes all of it.
    fn over(&mut self, _crew: Crew) {}
    /// Write what resuming needs to `root`, whole or not at all; nothing where the run cannot be continued.
    fn save(&mut self, _root: &Path) -> Result<()> {
        Ok(())
    }
    /// The end: idle steps are made up for, and the record names the result. Refused by runs that only measure.
    fn finish(self: Box<Self>) -> Result<Conclusion<B>> {
        Err(Error::usage("this run leaves no model"))
    }
}

/// Whoever looks on while a run is driven.
pub trait Watch<B: Backend> {
    /// Before every step: an error ends the run.
    fn before(&mut self, _run: &mut dyn Run<B>) -> Result<()> {
        Ok(())
    }
    /// After every step.
    fn after(&mut self, _run: &mut dyn Run<B>, _step: Step) -> Result<()> {
        Ok(())
    }
}

/// Make every step that `run` has left, under the eyes of `watch`.
pub fn drive<B: Backend>(run: &mut dyn Run<B>, watch: &mut dyn Watch<B>) -> Result<()> {
    while run.next().is_some() {
        watch.before(run)?;
        let Some(step) = run.step()? else { break };
        watch.after(run, step)?;
    }
    Ok(())
}

/// Asks nothing but whether to go on, before every step.
pub struct GoOn<F>(pub F);

impl<B: Backend, F: FnMut() -> Result<()>> Watch<B> for GoOn<F> {
    fn before(&mut self, _run: &mut dyn Run<B>) -> Result<()> {
        (self.0)()
    }
}
