//! What went wrong on a device. Ops do not return errors; the first fault is kept, further work is skipped, and whoever waits
//! for results is told.

use super::adapter::AdapterInfo;
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex};

/// The first fault of a device, if any. Clones share it.
#[derive(Clone)]
pub(super) struct Fault {
    first: Arc<Mutex<Option<String>>>,
    adapter: String,
}

impl Fault {
    /// A fault that `device` reports to, instead of panicking.
    pub(super) fn watch(device: &wgpu::Device, info: &AdapterInfo) -> Self {
        let fault = Self { first: Arc::default(), adapter: format!("{} ({})", info.name, info.backend) };
        let (errors, lost) = (fault.clone(), fault.clone());
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| match e {
            wgpu::Error::OutOfMemory { .. } => {
                errors.set("out of memory: use a smaller batch or shorter sequences, or --device cpu".into());
            }
            wgpu::Error::Validation { description, .. } => {
                errors.set(format!("a command was refused, which is a bug worth reporting: {description}"));
            }
            wgpu::Error::Internal { description, .. } => {
                errors.set(format!(
                    "the driver failed: {description}; update it, choose another adapter, or use --device cpu"
                ));
            }
        }));
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
