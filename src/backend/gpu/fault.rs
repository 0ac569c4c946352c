//! What went wrong on a device. Ops do not return errors; the first fault is kept, further work is skipped, and whoever waits
//! for results is told.

use super::adapter::AdapterInfo;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The first fault of a device, if any. Clones share it.
#[derive(Clone)]
pub(super) struct Fault {
    first: Arc<Mutex<Option<String>>>,
    adapter: String,
    /// Bytes of the buffer that was last asked for, and of all that existed then.
    asked: Arc<(AtomicU64, AtomicU64)>,
}

impl Fault {
    /// A fault that `device` reports to, instead of panicking.
    pub(super) fn watch(device: &wgpu::Device, info: &AdapterInfo) -> Self {
        let fault = Self::new(info);
        let (errors, lost) = (fault.clone(), fault.clone());
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| errors.error(e)));
        device.set_device_lost_callback(move |reason, message| {
            // The device is also "lost" when it is dropped at the end; nobody asks then.
            let message = message.trim_end_matches('.');
            lost.set(format!(
                "the device was lost ({reason:?}: {message}): it was reset, unplugged, or a command took too long; \
                 resume from the last checkpoint, with a smaller batch if this happens again"
            ));
        });
        fault
    }

    fn new(info: &AdapterInfo) -> Self {
        let adapter = format!("{} ({})", info.name, info.backend);
        Self { first: Arc::default(), adapter, asked: Arc::default() }
    }

    /// Record what the device reports.
    fn error(&self, e: wgpu::Error) {
        match e {
            wgpu::Error::OutOfMemory { .. } => {
                let [asked, held] = [&self.asked.0, &self.asked.1].map(|x| x.load(Ordering::Relaxed) >> 20);
                self.set(format!(
                    "out of memory: the last buffer asked for has {asked} MB, beside {held} MB in others; use a smaller \
                     `micro_batch` or shorter records, or `device` cpu"
                ));
            }
            wgpu::Error::Validation { description, .. } => {
                self.set(format!("a command was refused, which is a bug worth reporting: {description}"));
            }
            wgpu::Error::Internal { description, .. } => {
                self.set(format!(
                    "the driver failed: {description}; update it, choose another adapter, or use `device` cpu"
                ));
            }
        }
    }

    /// A buffer of `bytes` bytes is about to be asked for, `held` exist.
    pub(super) fn asking(&self, bytes: u64, held: u64) {
        self.asked.0.store(bytes, Ordering::Relaxed);
        self.asked.1.store(held, Ordering::Relaxed);
    }

    /// Record a fault unless there is one already.
    pub(super) fn set(&self, what: String) {
        let mut first = self.first.lock().expect("no panic while holding a fault");
        first.get_or_insert_with(|| format!("{}: {what}", self.adapter));
    }

    /// Whether there is none.
    pub(super) fn none(&self) -> bool {
        self.first.lock().expect("no panic while holding a fault").is_none()
    }

    /// The fault as an error.
    pub(super) fn check(&self) -> Result<()> {
        match &*self.first.lock().expect("no panic while holding a fault") {
            None => Ok(()),
            Some(what) => Err(Error::Device(what.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_out_of_memory_is_a_sentence() {
        let info = crate::backend::gpu::adapters().into_iter().next();
        let Some(info) = info else { return };
        let fault = Fault::new(&info);
        assert!(fault.check().is_ok() && fault.none());
        fault.asking(300 << 20, 7 << 30);
        fault.error(wgpu::Error::OutOfMemory { source: "vkAllocateMemory".into() });
        fault.error(wgpu::Error::OutOfMemory { source: "again".into() });
        let Err(Error::Device(what)) = fault.check() else { panic!("no error") };
        assert!(what.starts_with(&info.name), "{what}");
        assert!(what.contains("300 MB, beside 7168 MB") && what.contains("`micro_batch`"), "{what}");
    }
}
