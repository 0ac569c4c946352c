//! Which adapters there are, and opening one.

use super::fault::Fault;
use crate::error::{Error, Result};
use wgpu::{Adapter, DeviceType};

/// Names the adapter to use when no other choice is made: part of its name, or its number in `ferret devices`.
pub const ADAPTER_VARIABLE: &str = "FERRET_ADAPTER";

/// What is known about an adapter before it is opened.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AdapterInfo {
    /// Its number, for selecting it.
    pub index: usize,
    /// What the driver calls it.
    pub name: String,
    /// The interface it is reached through: Vulkan, Metal, Dx12.
    pub backend: String,
    /// Discrete, integrated, virtual, software or other.
    pub kind: &'static str,
    /// Driver and version.
    pub driver: String,
    /// Largest buffer in bytes: no matrix can be larger.
    pub max_buffer: u64,
    /// Largest part of a buffer that a shader sees at once, in bytes; larger matrices are worked on in parts.
    pub max_binding: u64,
    /// Memory shared by a workgroup, in bytes.
    pub workgroup_memory: u32,
    /// Threads in a workgroup.
    pub workgroup_threads: u32,
    /// Smallest and largest number of threads in lockstep.
    pub subgroup: (u32, u32),
    /// Optional features it has.
    pub features: Vec<String>,
}

impl AdapterInfo {
    fn new(index: usize, adapter: &Adapter) -> Self {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let driver = format!("{} {}", info.driver, info.driver_info);
        Self {
            index,
            name: info.name,
            backend: format!("{:?}", info.backend),
            kind: kind(info.device_type),
            driver: driver.trim().to_owned(),
            max_buffer: limits.max_buffer_size,
            max_binding: limits.max_storage_buffer_binding_size,
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            workgroup_threads: limits.max_compute_invocations_per_workgroup,
            subgroup: (info.subgroup_min_size, info.subgroup_max_size),
            features: [
                ("f16", wgpu::Features::SHADER_F16),
                ("f64", wgpu::Features::SHADER_F64),
                ("int64", wgpu::Features::SHADER_INT64),
                ("subgroups", wgpu::Features::SUBGROUP),
                ("timestamps", wgpu::Features::TIMESTAMP_QUERY),
                ("immediates", wgpu::Features::IMMEDIATES),
                ("mappable storage", wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
            ]
            .into_iter()
            .filter(|(_, f)| adapter.features().contains(*f))
            .map(|(name, _)| name.to_owned())
            .collect(),
        }
    }

    /// Whether it is a processor posing as a GPU: right for tests, slower than `--device cpu`.
    pub fn is_software(&self) -> bool {
        self.kind == "software"
    }
}

fn kind(device: DeviceType) -> &'static str {
    match device {
        DeviceType::DiscreteGpu => "discrete",
        DeviceType::IntegratedGpu => "integrated",
        DeviceType::VirtualGpu => "virtual",
        DeviceType::Cpu => "software",
        DeviceType::Other => "other",
    }
}

/// All adapters that can run compute shaders, the most capable kind first.
fn enumerate() -> Vec<Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    adapters.retain(|a| a.limits().max_compute_invocations_per_workgroup >= 256);
    adapters.sort_by_key(|a| match a.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    adapters
}

/// The adapters of this machine, the one that is used by default first.
pub fn adapters() -> Vec<AdapterInfo> {
    enumerate().iter().enumerate().map(|(i, a)| AdapterInfo::new(i, a)).collect()
}

/// The number of the adapter that `wanted` names, by number or by part of its name; without a name, the first.
fn find(infos: &[AdapterInfo], wanted: Option<&str>) -> Result<usize> {
    if infos.is_empty() {
        return Err(Error::Device(
            "no GPU adapter was found: install a Vulkan, Metal or DX12 driver (mesa-vulkan-drivers has a software one), \
             or use `device` cpu"
                .into(),
        ));
    }
    let Some(wanted) = wanted else { return Ok(0) };
    let matches = |i: &AdapterInfo| i.name.to_lowercase().contains(&wanted.to_lowercase());
    match wanted.parse::<usize>() {
        Ok(i) if i < infos.len() => Ok(i),
        _ => infos.iter().position(matches).ok_or_else(|| {
            let names: Vec<&str> = infos.iter().map(|i| i.name.as_str()).collect();
            Error::Device(format!(
                "no adapter is called `{wanted}`: this machine has {}; choose one by part of its name or by its number \
                 in `ferret devices`",
                names.join(", ")
            ))
        }),
    }
}

/// The adapter that the environment names.
fn from_environment() -> Option<String> {
    std::env::var(ADAPTER_VARIABLE).ok().filter(|s| !s.is_empty())
}

/// What `--device auto` takes: the adapter that the environment names, or else the most capable one; none where that is a
/// processor posing as a GPU, which is slower than `--device cpu`.
pub fn preferred() -> Option<AdapterInfo> {
    choose(adapters(), from_environment().as_deref())
}

fn choose(infos: Vec<AdapterInfo>, wanted: Option<&str>) -> Option<AdapterInfo> {
    let index = find(&infos, wanted).ok()?;
    infos.into_iter().nth(index).filter(|info| !info.is_software())
}

/// An open device.
pub(super) struct OpenDevice {
    pub(super) info: AdapterInfo,
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) limits: wgpu::Limits,
    pub(super) fault: Fault,
}

/// Open the adapter that `selector`, or else the environment, names; else the first.
pub(super) fn open(selector: Option<&str>) -> Result<OpenDevice> {
    let selector = selector.map(str::to_owned).or_else(from_environment);
    let adapters = enumerate();
    let infos: Vec<AdapterInfo> = adapters.iter().enumerate().map(|(i, a)| AdapterInfo::new(i, a)).collect();
    let index = find(&infos, selector.as_deref())?;
    let info = infos[index].clone();
    let limits = adapters[index].limits();
    let (device, queue) = pollster::block_on(adapters[index].request_device(&wgpu::DeviceDescriptor {
        label: Some("ferret"),
        required_limits: limits.clone(),
        ..Default::default()
    }))
    .map_err(|e| {
        Error::Device(format!("{} could not be opened: {e}; choose another adapter or `device` cpu", info.name))
    })?;
    let fault = Fault::watch(&device, &info);
    Ok(OpenDevice { info, device, queue, limits, fault })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(index: usize, name: &str, kind: &'static str) -> AdapterInfo {
        AdapterInfo {
            index,
            name: name.into(),
            backend: "Vulkan".into(),
            kind,
            driver: String::new(),
            max_buffer: 0,
            max_binding: 0,
            workgroup_memory: 0,
            workgroup_threads: 256,
            subgroup: (8, 8),
            features: Vec::new(),
        }
    }

    #[test]
    fn auto_takes_a_real_gpu_and_never_a_software_one() {
        let (real, soft) = (info(0, "Radeon", "integrated"), info(1, "llvmpipe", "software"));
        let name =
            |infos: &[&AdapterInfo], wanted| choose(infos.iter().copied().cloned().collect(), wanted).map(|i| i.name);
        assert_eq!(name(&[], None), None);
        assert_eq!(name(&[&soft], None), None);
        assert_eq!(name(&[&real, &soft], None).as_deref(), Some("Radeon"));
        assert_eq!(name(&[&real, &soft], Some("llvm")), None);
        assert_eq!(name(&[&real, &soft], Some("0")).as_deref(), Some("Radeon"));
        assert_eq!(name(&[&real, &soft], Some("no such")), None);
    }
}
