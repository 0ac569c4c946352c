//! An open device with its pool, its pipelines and the commands recorded so far.

use super::adapter::{AdapterInfo, OpenDevice};
use super::fault::Fault;
use super::kernels::{self, Kernel};
use super::params::Params;
use super::pool::{Pool, class};
use super::recorder::{Recorder, Work};
use super::tensor::{Tensor, Window, line};
use crate::error::{Error, Result};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// How long a finished copy's callback may take to arrive.
const READBACK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// Bytes written or read at a time, so that staging memory stays small.
const STAGING: usize = 32 << 20;

/// A workgroup count that every device takes in one dimension.
const MAX_GROUPS: usize = 65_535;

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(super) enum Arg<'a> {
    /// Rows of a tensor.
    Rows(Window<'a>),
    /// Small host data, copied now.
    Words(&'a [u32]),
    /// Something to bind where a kernel will not look.
    Nothing,
}

/// A pipeline and how its arguments are bound.
pub(super) struct Pipeline {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

/// Pipelines by file, entry point and constants.
type Pipelines = HashMap<(&'static str, &'static str, Vec<u32>), Arc<Pipeline>>;

pub(super) struct Context {
    pub(super) info: AdapterInfo,
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) limits: wgpu::Limits,
    pub(super) fault: Fault,
    /// Bytes of the largest binding.
    binding: u64,
    /// What the start of a binding must be a multiple of, in bytes.
    pub(super) alignment: u64,
    pool: Mutex<Pool>,
    readback: Mutex<Pool>,
    pipelines: Mutex<Pipelines>,
    recorder: Mutex<Recorder>,
}

impl Context {
    /// A context on an open device that binds at most `binding` bytes at once.
    pub(super) fn new(opened: OpenDevice, binding: Option<u64>) -> Self {
        let OpenDevice { info, device, queue, limits, fault } = opened;
        let largest = limits.max_storage_buffer_binding_size & !255;
        let alignment = limits.min_storage_buffer_offset_alignment.max(16) as u64;
        Self {
            info,
            binding: binding.unwrap_or(largest).min(largest),
            alignment,
            recorder: Mutex::new(Recorder::new(&device)),
            device,
            queue,
            limits,
            fault,
            pool: Mutex::default(),
            readback: Mutex::default(),
            pipelines: Mutex::default(),
        }
    }

    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().expect("no panic while recording")
    }

    /// A buffer for a matrix, content stale. Where that is impossible the fault is recorded and the buffer is a token.
    pub(super) fn allocate(&self, rows: usize, cols: usize) -> wgpu::Buffer {
        let mut bytes = (rows * line(cols)) as u64 * 4;
        let limit = self.limits.max_buffer_size;
        if bytes > limit {
            self.fault.set(format!(
                "a matrix of {rows} x {cols} needs a buffer of {} MB and the adapter's limit (max_buffer_size) is {} MB: use a \
                 smaller batch or shorter sequences, or `device` cpu",
                bytes >> 20,
                limit >> 20
            ));
            bytes = 0;
        }
        let mut pool = self.pool.lock().expect("no panic while holding the pool");
        let held = pool.bytes();
        pool.take(class(bytes).min(limit & !255), |size| {
            self.fault.asking(size, held);
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("matrix"),
                size,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })
    }

    pub(super) fn give_back(&self, buffer: wgpu::Buffer) {
        self.pool.lock().expect("no panic while holding the pool").put(buffer);
    }

    /// Buffers made so far, and bytes that exist in them.
    pub(super) fn allocated(&self) -> (u64, u64) {
        let pool = self.pool.lock().expect("no panic while holding the pool");
        (pool.made, pool.bytes())
    }

    /// The kernels without a pipeline.
    pub(super) fn unused(&self) -> Vec<String> {
        let pipelines = self.pipelines.lock().expect("no panic while compiling");
        let used = |k: &&&Kernel| pipelines.keys().any(|key| (key.0, key.1) == (k.file, k.entry));
        kernels::ALL.iter().filter(|k| !used(k)).map(|k| format!("{} {}", k.file, k.entry)).collect()
    }

    /// Submissions so far.
    pub(super) fn submissions(&self) -> u64 {
        self.recorder().submissions
    }

    /// Ranges that cover `rows`, small enough for windows of tensors with these columns to fit a binding.
    pub(super) fn blocks(&self, rows: Range<usize>, cols: &[usize]) -> Vec<Range<usize>> {
        if rows.is_empty() {
            return Vec::new();
        }
        let widest = cols.iter().map(|&c| line(c)).max().unwrap_or(4).max(4) as u64 * 4;
        // A window may start `alignment` bytes before its first row.
        let fit = (self.binding.saturating_sub(self.alignment) / widest) as usize;
        if fit == 0 {
            self.fault.set(format!(
                "a matrix with {} columns has rows longer than the adapter's limit of {} MB in one binding \
                 (max_storage_buffer_binding_size): use `device` cpu",
                widest / 4,
                self.binding >> 20
            ));
            return Vec::new();
        }
        // Multiples of four, where possible, keep blocks of columns on vec4s.
        let fit = if fit >= 4 { fit & !3 } else { fit };
        let end = rows.end;
        rows.step_by(fit).map(|first| first..(first + fit).min(end)).collect()
    }

    /// Record one dispatch: `groups` workgroups in one dimension, folded if there are more than a device takes. `flops` is an
    /// estimate of the work.
    pub(super) fn run(
        &self,
        kernel: &'static Kernel,
        constants: &[u32],
        args: &[Arg],
        params: &impl Params,
        groups: usize,
        flops: f64,
    ) {
        if groups == 0 || !self.fault.none() {
            return;
        }
        let pipeline = self.pipeline(kernel, constants);
        let y = groups.div_ceil(MAX_GROUPS);
        let x = groups.div_ceil(y);
        let params = params.words();
        let work = Work { pipeline: &pipeline, kernel, args, params, groups: (x as u32, y as u32), flops };
        self.recorder().dispatch(&self.device, &self.queue, work);
    }

    fn pipeline(&self, kernel: &'static Kernel, constants: &[u32]) -> Arc<Pipeline> {
        let key = (kernel.file, kernel.entry, constants.to_vec());
        let mut pipelines = self.pipelines.lock().expect("no panic while compiling");
        let pipeline = pipelines.entry(key).or_insert_with(|| Arc::new(self.compile(kernel, &kernel.text(constants))));
        pipeline.clone()
    }

    fn compile(&self, kernel: &Kernel, text: &str) -> Pipeline {
        let label = Some(kernel.file);
        let source = wgpu::ShaderSource::Wgsl(text.into());
        // Bounds are checked as everywhere; a counter in every loop, against endless ones, would keep drivers from unrolling.
        let checks = wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() };
        // SAFETY: every loop of our shaders counts towards a bound that does not change within the loop.
        let module =
            unsafe { self.device.create_shader_module_trusted(wgpu::ShaderModuleDescriptor { label, source }, checks) };
        let entry = |binding, ty| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        };
        let mut entries = vec![entry(0, wgpu::BufferBindingType::Uniform)];
        entries.extend(
            kernel.bindings.iter().map(|&(i, write)| entry(i, wgpu::BufferBindingType::Storage { read_only: !write })),
        );
        let layout =
            self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(kernel.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Every kernel writes workgroup memory before reading it.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        Pipeline { pipeline, layout }
    }

    /// Record: fill with zeros.
    pub(super) fn clear(&self, x: &Tensor) {
        if self.fault.none() && x.byte(x.rows) > 0 {
            let (buffer, bytes) = (x.buffer(), x.byte(x.rows));
            self.recorder().copy(&self.device, |encoder| encoder.clear_buffer(buffer, 0, Some(bytes)));
        }
    }

    /// Record: rows `rows` of `x` to the beginning of `y`, which has the same columns.
    pub(super) fn copy_rows(&self, x: &Tensor, rows: Range<usize>, y: &Tensor) {
        let (from, bytes) = (x.byte(rows.start), x.byte(rows.end) - x.byte(rows.start));
        if self.fault.none() && bytes > 0 {
            self.recorder()
                .copy(&self.device, |encoder| encoder.copy_buffer_to_buffer(x.buffer(), from, y.buffer(), 0, bytes));
        }
    }

    /// Fill `x` with host data, row-major without padding.
    pub(super) fn write(&self, x: &Tensor, data: &[f32]) -> Result<()> {
        self.fault.check()?;
        if data.is_empty() {
            return Ok(());
        }
        let mut recorder = self.recorder();
        let (cols, padded) = (x.cols, x.line());
        let rows_at_once = (STAGING / (padded * 4)).max(1);
        for (i, block) in data.chunks(rows_at_once * cols).enumerate() {
            let block = pad(block, cols, padded);
            let bytes: &[u8] = bytemuck::cast_slice(&block);
            if i == 0 {
                if recorder.send(&self.device, &self.queue, bytes, x.buffer()) {
                    break;
                }
                // What is recorded may still use this buffer, even under its former owner; a write overtakes recorded commands.
                recorder.submit(&self.queue);
            }
            self.queue.write_buffer(x.buffer(), x.byte(i * rows_at_once), bytes);
            if bytes.len() >= STAGING / 2 {
                self.queue.submit([]);
                self.wait()?;
            }
        }
        drop(recorder);
        self.fault.check()
    }

    /// The content of `x`, row-major without padding.
    pub(super) fn read(&self, x: &Tensor) -> Result<Vec<f32>> {
        Ok(self.read_all(&[x])?.remove(0))
    }

    /// The content of several tensors, in as few waits as staging memory allows: one, unless they are large.
    pub(super) fn read_all(&self, all: &[&Tensor]) -> Result<Vec<Vec<f32>>> {
        self.fault.check()?;
        let mut data: Vec<Vec<f32>> = all.iter().map(|x| Vec::with_capacity(x.rows * x.cols)).collect();
        // Which tensor, from which byte, how many.
        let mut pieces: Vec<(usize, u64, u64)> = Vec::new();
        for (i, x) in all.iter().enumerate().filter(|(_, x)| x.cols > 0) {
            let rows_at_once = (STAGING / (x.line() * 4)).max(1);
            for first in (0..x.rows).step_by(rows_at_once) {
                let end = (first + rows_at_once).min(x.rows);
                pieces.push((i, x.byte(first), x.byte(end) - x.byte(first)));
            }
        }
        let mut rest = &pieces[..];
        while let Some(first) = rest.first() {
            let mut total = first.2;
            let fitting = rest[1..].iter().take_while(|p| {
                total += p.2;
                total <= STAGING as u64
            });
            let (together, later) = rest.split_at(1 + fitting.count());
            rest = later;
            let bytes: u64 = together.iter().map(|p| p.2).sum();
            let staging = self.readback.lock().expect("no panic while holding the pool").take(class(bytes), |size| {
                self.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("readback"),
                    size,
                    usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                    mapped_at_creation: false,
                })
            });
            {
                let mut recorder = self.recorder();
                recorder.copy(&self.device, |e| {
                    let mut to = 0;
                    for &(i, from, bytes) in together {
                        e.copy_buffer_to_buffer(all[i].buffer(), from, &staging, to, bytes);
                        to += bytes;
                    }
                });
                recorder.submit(&self.queue);
            }
            self.fault.check()?;
            let (told, outcome) = std::sync::mpsc::channel();
            staging.map_async(wgpu::MapMode::Read, ..bytes, move |result| {
                // Nobody listens any more after a fault.
                let _ = told.send(result.is_ok());
            });
            self.wait()?;
            // Another thread's wait may be the one that calls back, a moment after ours has returned.
            if outcome.recv_timeout(READBACK_PATIENCE) != Ok(true) {
                self.fault.set("the result could not be read back".into());
                self.fault.check()?;
            }
            {
                let view = staging.get_mapped_range(..bytes).map_err(|e| {
                    Error::Device(format!("{}: the result could not be read back: {e}", self.info.name))
                })?;
                let mut numbers: &[f32] = bytemuck::cast_slice(&view);
                for &(i, _, bytes) in together {
                    let (own, rest) = numbers.split_at(bytes as usize / 4);
                    numbers = rest;
                    for row in own.chunks_exact(all[i].line()) {
                        data[i].extend_from_slice(&row[..all[i].cols]);
                    }
                }
            }
            staging.unmap();
            self.readback.lock().expect("no panic while holding the pool").put(staging);
        }
        self.fault.check()?;
        Ok(data)
    }

    /// Submit what is recorded and wait until the device is idle.
    pub(super) fn finish(&self) -> Result<()> {
        self.recorder().submit(&self.queue);
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        if let Err(e) = self.device.poll(wgpu::PollType::wait_indefinitely()) {
            self.fault.set(format!("waiting for the device failed: {e}"));
        }
        self.fault.check()
    }
}

/// Rows of `cols` numbers as rows of `padded`.
fn pad(data: &[f32], cols: usize, padded: usize) -> Cow<'_, [f32]> {
    if cols == padded {
        return Cow::Borrowed(data);
    }
    let mut rows = vec![0.0; data.len() / cols * padded];
    for (to, from) in rows.chunks_exact_mut(padded).zip(data.chunks_exact(cols)) {
        to[..cols].copy_from_slice(from);
    }
    Cow::Owned(rows)
}
