//! Commands recorded and not yet submitted.
//!
//! Dispatches gather in one compute pass, with their parameters and other small host data in one host buffer. On submission that
//! buffer goes to the device in one write, which takes effect after the commands submitted before and before the ones submitted
//! with it; so one device buffer serves every submission.

use super::context::{Arg, Pipeline};
use super::kernels::Kernel;

/// Bytes of small host data in a submission, unless one dispatch needs more.
const ARENA: u64 = 1 << 20;
/// Dispatches in a submission.
const MAX_DISPATCHES: usize = 256;
/// Estimated floating-point operations in a submission: systems reset a device that is busy with one for seconds.
const MAX_FLOPS: f64 = 1e11;
/// Uniform and storage bindings start at multiples of this on every device.
const ALIGN: usize = 256;

/// One dispatch.
pub(super) struct Work<'a> {
    pub(super) pipeline: &'a Pipeline,
    pub(super) kernel: &'static Kernel,
    pub(super) args: &'a [Arg<'a>],
    pub(super) params: &'a [u32],
    pub(super) groups: (u32, u32),
    pub(super) flops: f64,
}

pub(super) struct Recorder {
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<wgpu::ComputePass<'static>>,
    /// Small host data on the device, and as gathered for the next submission.
    arena: wgpu::Buffer,
    gathered: Vec<u8>,
    dispatches: usize,
    flops: f64,
    pub(super) submissions: u64,
}

fn arena(device: &wgpu::Device, size: u64) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("arena"),
        size,
        usage: wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::UNIFORM
            | wgpu::BufferUsages::COPY_DST
            | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    })
}

impl Recorder {
    pub(super) fn new(device: &wgpu::Device) -> Self {
        Self {
            encoder: None,
            pass: None,
            arena: arena(device, ARENA),
            gathered: Vec::new(),
            dispatches: 0,
            flops: 0.0,
            submissions: 0,
        }
    }

    fn encoder(&mut self, device: &wgpu::Device) -> &mut wgpu::CommandEncoder {
        self.encoder.get_or_insert_with(|| device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default()))
    }

    /// Record copies or clears.
    pub(super) fn copy(&mut self, device: &wgpu::Device, record: impl FnOnce(&mut wgpu::CommandEncoder)) {
        self.pass = None;
        record(self.encoder(device));
    }

    /// Record: small host data to the beginning of `to`. Says no if it is not small.
    pub(super) fn send(&mut self, device: &wgpu::Device, queue: &wgpu::Queue, data: &[u8], to: &wgpu::Buffer) -> bool {
        let slot = data.len().next_multiple_of(ALIGN);
        if slot as u64 > ARENA / 4 {
            return false;
        }
        if self.gathered.len() + slot > self.arena.size() as usize {
            self.submit(queue);
        }
        let offset = self.gathered.len();
        self.gathered.extend_from_slice(data);
        self.gathered.resize(offset + slot, 0);
        self.pass = None;
        self.encoder(device);
        let (arena, encoder) = (&self.arena, self.encoder.as_mut().expect("just begun"));
        encoder.copy_buffer_to_buffer(arena, offset as u64, to, 0, data.len() as u64);
        true
    }

    /// Record a dispatch.
    pub(super) fn dispatch(&mut self, device: &wgpu::Device, queue: &wgpu::Queue, work: Work) {
        let slot = |words: &[u32]| (words.len() * 4).max(16).next_multiple_of(ALIGN);
        let words = |arg: &Arg| if let Arg::Words(words) = arg { slot(words) } else { 0 };
        let needed = slot(work.params) + work.args.iter().map(words).sum::<usize>();
        if self.gathered.len() + needed > self.arena.size() as usize {
            self.submit(queue);
            if needed > self.arena.size() as usize {
                self.arena = arena(device, (needed as u64).next_power_of_two());
            }
        }
        let mut gather = |words: &[u32]| {
            let offset = self.gathered.len();
            self.gathered.extend_from_slice(bytemuck::cast_slice(words));
            self.gathered.resize(offset + slot(words), 0);
            (offset as u64, (words.len() as u64 * 4).next_multiple_of(16).max(16))
        };
        let places: Vec<(u64, u64)> = std::iter::once(gather(work.params))
            .chain(work.args.iter().map(|arg| match arg {
                Arg::Rows(window) => (window.offset, window.size),
                Arg::Words(words) => gather(words),
                Arg::Nothing => (0, 16),
            }))
            .collect();
        let bind = |i: usize, binding: u32, buffer| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset: places[i].0,
                size: wgpu::BufferSize::new(places[i].1),
            }),
        };
        let mut entries = vec![bind(0, 0, &self.arena)];
        for (i, (arg, &(binding, _))) in work.args.iter().zip(work.kernel.bindings).enumerate() {
            let buffer = if let Arg::Rows(window) = arg { window.buffer } else { &self.arena };
            entries.push(bind(i + 1, binding, buffer));
        }
        assert_eq!(work.args.len(), work.kernel.bindings.len(), "arguments of {}", work.kernel.entry);
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(work.kernel.entry),
            layout: &work.pipeline.layout,
            entries: &entries,
        });
        if self.pass.is_none() {
            let pass =
                self.encoder(device).begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime();
            self.pass = Some(pass);
        }
        let pass = self.pass.as_mut().expect("just begun");
        pass.set_pipeline(&work.pipeline.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(work.groups.0, work.groups.1, 1);
        self.dispatches += 1;
        self.flops += work.flops;
        if self.dispatches >= MAX_DISPATCHES || self.flops >= MAX_FLOPS {
            self.submit(queue);
        }
    }

    /// Hand everything recorded to the device.
    pub(super) fn submit(&mut self, queue: &wgpu::Queue) {
        self.pass = None;
        if let Some(encoder) = self.encoder.take() {
            if !self.gathered.is_empty() {
                queue.write_buffer(&self.arena, 0, &self.gathered);
            }
            queue.submit([encoder.finish()]);
            self.submissions += 1;
        }
        self.gathered.clear();
        self.dispatches = 0;
        self.flops = 0.0;
    }
}
