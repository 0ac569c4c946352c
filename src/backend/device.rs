//! Which backend work runs on, chosen at run time.

use super::{Backend, Cpu};
use crate::error::Result;
use crate::progress::Progress;

/// Where to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Device {
    /// The processor
    #[default]
    Cpu,
    /// A graphics device through wgpu; see `ferret devices`
    Gpu,
    /// A graphics device if there is one that is not software, else the processor
    Auto,
}

/// Work that can run on any backend.
pub trait Job {
    /// What it gives.
    type Output;
    /// Do it on `backend`.
    fn run<B: Backend>(self, backend: B) -> Result<Self::Output>;
}

impl Device {
    /// Run `job` there. `progress` is told of a graphics device's name.
    pub fn run<J: Job>(self, job: J, progress: &dyn Progress) -> Result<J::Output> {
        match self {
            Self::Cpu => job.run(Cpu::<f32>::new()),
            Self::Gpu => on_gpu(job, progress),
            Self::Auto => on_best(job, progress),
        }
    }
}

/// On a GPU if there is one that is not software and can be opened, else on the processor.
#[cfg(feature = "gpu")]
fn on_best<J: Job>(job: J, progress: &dyn Progress) -> Result<J::Output> {
    let Some(info) = super::gpu::preferred() else { return job.run(Cpu::<f32>::new()) };
    match super::Gpu::new(Some(&info.index.to_string())) {
        Ok(gpu) => {
            progress.device(&format!("{} ({})", info.name, info.backend));
            job.run(gpu)
        }
        Err(e) => {
            progress.note(&format!("{e}; the processor is used"));
            job.run(Cpu::<f32>::new())
        }
    }
}

#[cfg(not(feature = "gpu"))]
fn on_best<J: Job>(job: J, _: &dyn Progress) -> Result<J::Output> {
    job.run(Cpu::<f32>::new())
}

#[cfg(feature = "gpu")]
fn on_gpu<J: Job>(job: J, progress: &dyn Progress) -> Result<J::Output> {
    let gpu = super::Gpu::new(None)?;
    progress.device(&format!("{} ({})", gpu.info().name, gpu.info().backend));
    job.run(gpu)
}

#[cfg(not(feature = "gpu"))]
fn on_gpu<J: Job>(_: J, _: &dyn Progress) -> Result<J::Output> {
    Err(crate::Error::Device("the feature `gpu` was not built: set `device` cpu".into()))
}
