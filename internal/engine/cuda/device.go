package cuda

import (
	"fmt"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/native"
)

// Attributes of devices (CUdevice_attribute).
const (
	attrClockRate         = 13 // kHz
	attrMultiprocessors   = 16
	attrComputeMode       = 20
	attrPCIBus            = 33
	attrPCIDevice         = 34
	attrMemoryClockRate   = 36 // kHz
	attrMemoryBusWidth    = 37 // bits
	attrL2Bytes           = 38
	attrPCIDomain         = 50
	attrMajor             = 75
	attrMinor             = 76
	attrSharedPerMulti    = 81
	attrSharedPerBlockMax = 97  // with AllowShared
	attrSharedReserved    = 111 // bytes that the driver takes for each block
)

// computeProhibited is the compute mode in which no process may use the card.
const computeProhibited = 2

// minMajor is the oldest generation that runs the kernels: compute capability 8.0 (Ampere) brought
// asynchronous copies into shared memory and bfloat16.
const minMajor = 8

// A Device is a graphics card.
type Device struct {
	driver *Driver
	number int32

	Index           int    // 0 is cuda:0
	Name            string // such as "NVIDIA H100 80GB HBM3"
	UUID            string // "GPU-" and 32 hexadecimal digits in groups
	PCI             string // domain:bus:device
	Major, Minor    int    // compute capability
	Multiprocessors int
	Memory          int64 // bytes
	SharedMemory    int   // maximum bytes of shared memory of a block
	sharedPerMulti  int   // bytes of shared memory of a multiprocessor
	sharedReserved  int   // bytes of sharedPerMulti that the driver takes for each block
	L2              int   // bytes
	Clock           int   // MHz, at most
	Bandwidth       int64 // bytes per second of its memory, by clock and width; 0: unknown to the driver
	Prohibited      bool  // its compute mode forbids all use
}

// Devices lists the cards, in the driver's order (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER).
func (d *Driver) Devices() ([]*Device, error) {
	var n int32
	if err := d.call(fnDeviceGetCount, uintptr(unsafe.Pointer(&n))); err != nil {
		return nil, err
	}
	devices := make([]*Device, 0, max(n, 0))
	for i := range int(n) {
		dev, err := d.device(i)
		if err != nil {
			return nil, fmt.Errorf("cuda:%d: %w", i, err)
		}
		devices = append(devices, dev)
	}
	return devices, nil
}

func (d *Driver) device(index int) (*Device, error) {
	dev := &Device{driver: d, Index: index}
	if err := d.call(fnDeviceGet, uintptr(unsafe.Pointer(&dev.number)), uintptr(index)); err != nil {
		return nil, err
	}
	var name [256]byte
	if err := d.call(fnDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)-1), uintptr(dev.number)); err != nil {
		return nil, err
	}
	dev.Name = native.String(uintptr(unsafe.Pointer(&name[0])))
	var id [16]byte
	if err := d.call(fnDeviceGetUUID, uintptr(unsafe.Pointer(&id[0])), uintptr(dev.number)); err != nil {
		return nil, err
	}
	dev.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	var bytes uintptr
	if err := d.call(fnDeviceTotalMem, uintptr(unsafe.Pointer(&bytes)), uintptr(dev.number)); err != nil {
		return nil, err
	}
	dev.Memory = int64(bytes)

	values := map[int]int{}
	for _, a := range []int{attrSharedPerBlockMax, attrSharedPerMulti, attrSharedReserved, attrClockRate, attrMultiprocessors, attrComputeMode,
		attrPCIBus, attrPCIDevice, attrPCIDomain,
		attrMemoryClockRate, attrMemoryBusWidth, attrL2Bytes, attrMajor, attrMinor} {
		var v int32
		if err := d.call(fnDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev.number)); err != nil {
			return nil, err
		}
		values[a] = int(v)
	}
	dev.Major, dev.Minor = values[attrMajor], values[attrMinor]
	dev.Multiprocessors = values[attrMultiprocessors]
	dev.SharedMemory = values[attrSharedPerBlockMax]
	dev.sharedPerMulti, dev.sharedReserved = values[attrSharedPerMulti], values[attrSharedReserved]
	dev.L2 = values[attrL2Bytes]
	dev.Clock = values[attrClockRate] / 1000
	// Two transfers a clock.
	dev.Bandwidth = 2 * int64(values[attrMemoryClockRate]) * 1000 * int64(values[attrMemoryBusWidth]/8)
	dev.PCI = fmt.Sprintf("%04x:%02x:%02x", values[attrPCIDomain], values[attrPCIBus], values[attrPCIDevice])
	dev.Prohibited = values[attrComputeMode] == computeProhibited
	return dev, nil
}

// PendingCall is that of the device's driver.
func (dev *Device) PendingCall() (function string, call uint32, pending bool) {
	return dev.driver.PendingCall()
}

// Usable returns the reason why Shoal cannot compute on the card, or nil.
func (dev *Device) Usable() error {
	switch {
	case dev.Major < minMajor:
		return fmt.Errorf("compute capability %d.%d is too old: Shoal needs %d.0, which Ampere cards (A100, RTX 30) and newer ones have",
			dev.Major, dev.Minor, minMajor)
	case dev.Prohibited:
		return fmt.Errorf("its compute mode is \"prohibited\": allow use with nvidia-smi -i %d -c DEFAULT", dev.Index)
	}
	return nil
}
