// Lets the CPU build of torch believe in a CUDA device, as far as fake tensors need one: a device
// guard that does nothing, and hooks that answer "there is one device".
//
// Loaded before torch is imported for the first time; nothing is ever computed on the device.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device DEVICE(c10::DeviceType::CUDA, 0);
const c10::Stream STREAM(c10::Stream::DEFAULT, DEVICE);

struct NoGuard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    c10::Device getDevice() const override { return DEVICE; }
    c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const noexcept override { return STREAM; }
    c10::Stream getDefaultStream(c10::Device) const override { return STREAM; }
    c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
    bool queryStream(const c10::Stream &) const override { return true; }
    void synchronizeStream(const c10::Stream &) const override {}
    void record(void **, const c10::Stream &, c10::DeviceIndex, c10::EventFlag) const override {}
    void block(void *, const c10::Stream &) const override {}
    bool queryEvent(void *) const override { return true; }
    void synchronizeEvent(void *) const override {}
    void destroyEvent(void *, c10::DeviceIndex) const noexcept override {}
};

c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, new NoGuard());

}  // namespace

namespace at {

struct OneDevice final : CUDAHooksInterface {
    explicit OneDevice(CUDAHooksArgs) {}
    void init() const override {}
    bool hasCUDA() const override { return true; }
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(DeviceIndex) const override { return true; }
    DeviceIndex deviceCount() const override { return 1; }
    DeviceIndex getCurrentDevice() const override { return 0; }
    DeviceIndex current_device() const override { return 0; }
    DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
    DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
    bool isPinnedPtr(const void *) const override { return false; }
};

using at::CUDAHooksArgs;
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, OneDevice)

}  // namespace at
