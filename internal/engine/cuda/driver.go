// Package cuda calls the driver of NVIDIA's graphics cards: devices, memory, kernels, streams and
// graphs. It needs no CUDA toolkit and no cgo: libcuda.so.1, which the card's driver installs, is
// loaded by internal/native when Open is called.
//
// Names follow the CUDA driver API, whose documentation defines their behaviour.
package cuda

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/native"
)

// Library is the file that the driver installs.
const Library = "libcuda.so.1"

// ErrNoDriver reports that there is no driver, or that it does not start.
var ErrNoDriver = errors.New("cuda: no driver of an NVIDIA card")

// Function numbers of the driver, and their names in the library.
const (
	fnInit = iota
	fnDriverGetVersion
	fnGetErrorName
	fnGetErrorString
	fnDeviceGetCount
	fnDeviceGet
	fnDeviceGetName
	fnDeviceGetUUID
	fnDeviceGetAttribute
	fnDeviceTotalMem
	fnPrimaryRetain
	fnPrimaryRelease
	fnCtxSetCurrent
	fnMemGetInfo
	fnMemAlloc
	fnMemFree
	fnMemHostAlloc
	fnMemFreeHost
	fnMemHostRegister
	fnMemHostUnregister
	fnMemcpyHtoDAsync
	fnMemcpyDtoHAsync
	fnMemcpyDtoDAsync
	fnMemsetD32Async
	fnModuleLoadDataEx
	fnModuleUnload
	fnModuleGetFunction
	fnFuncSetAttribute
	fnFuncGetAttribute
	fnLaunchKernel
	fnStreamCreate
	fnStreamDestroy
	fnStreamSynchronize
	fnStreamQuery
	fnEventCreate
	fnEventDestroy
	fnEventRecord
	fnEventSynchronize
	fnEventElapsedTime
	fnStreamBeginCapture
	fnStreamEndCapture
	fnGraphInstantiate
	fnGraphLaunch
	fnGraphDestroy
	fnGraphExecDestroy
	functions // number of functions
)

// The suffix _v2 is the version that CUDA's header gives the plain name.
var functionNames = [functions]string{
	fnInit:               "cuInit",
	fnDriverGetVersion:   "cuDriverGetVersion",
	fnGetErrorName:       "cuGetErrorName",
	fnGetErrorString:     "cuGetErrorString",
	fnDeviceGetCount:     "cuDeviceGetCount",
	fnDeviceGet:          "cuDeviceGet",
	fnDeviceGetName:      "cuDeviceGetName",
	fnDeviceGetUUID:      "cuDeviceGetUuid",
	fnDeviceGetAttribute: "cuDeviceGetAttribute",
	fnDeviceTotalMem:     "cuDeviceTotalMem_v2",
	fnPrimaryRetain:      "cuDevicePrimaryCtxRetain",
	fnPrimaryRelease:     "cuDevicePrimaryCtxRelease_v2",
	fnCtxSetCurrent:      "cuCtxSetCurrent",
	fnMemGetInfo:         "cuMemGetInfo_v2",
	fnMemAlloc:           "cuMemAlloc_v2",
	fnMemFree:            "cuMemFree_v2",
	fnMemHostAlloc:       "cuMemHostAlloc",
	fnMemFreeHost:        "cuMemFreeHost",
	fnMemHostRegister:    "cuMemHostRegister_v2",
	fnMemHostUnregister:  "cuMemHostUnregister",
	fnMemcpyHtoDAsync:    "cuMemcpyHtoDAsync_v2",
	fnMemcpyDtoHAsync:    "cuMemcpyDtoHAsync_v2",
	fnMemcpyDtoDAsync:    "cuMemcpyDtoDAsync_v2",
	fnMemsetD32Async:     "cuMemsetD32Async",
	fnModuleLoadDataEx:   "cuModuleLoadDataEx",
	fnModuleUnload:       "cuModuleUnload",
	fnModuleGetFunction:  "cuModuleGetFunction",
	fnFuncSetAttribute:   "cuFuncSetAttribute",
	fnFuncGetAttribute:   "cuFuncGetAttribute",
	fnLaunchKernel:       "cuLaunchKernel",
	fnStreamCreate:       "cuStreamCreate",
	fnStreamDestroy:      "cuStreamDestroy_v2",
	fnStreamSynchronize:  "cuStreamSynchronize",
	fnStreamQuery:        "cuStreamQuery",
	fnEventCreate:        "cuEventCreate",
	fnEventDestroy:       "cuEventDestroy_v2",
	fnEventRecord:        "cuEventRecord",
	fnEventSynchronize:   "cuEventSynchronize",
	fnEventElapsedTime:   "cuEventElapsedTime",
	fnStreamBeginCapture: "cuStreamBeginCapture_v2",
	fnStreamEndCapture:   "cuStreamEndCapture",
	fnGraphInstantiate:   "cuGraphInstantiateWithFlags",
	fnGraphLaunch:        "cuGraphLaunch",
	fnGraphDestroy:       "cuGraphDestroy",
	fnGraphExecDestroy:   "cuGraphExecDestroy",
}

// minDriver is the oldest CUDA version whose driver reads the kernels' PTX: 12.0, driver 525.
const minDriver = 12000

// A Driver is the loaded library. A process opens one.
type Driver struct {
	// Version is the newest CUDA version that the driver supports, 1000*major + 10*minor.
	Version int

	library   *native.Library
	functions [functions]native.Func
}

// Open loads the driver and starts it, which takes 0.1 to 0.3 s. It may start a kernel module, and
// a broken driver can hang or end the process: try it in a child process first.
func Open() (*Driver, error) { return open(Library) }

func open(library string) (*Driver, error) {
	lib, err := native.Open(library)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	d := &Driver{library: lib}
	for i, name := range functionNames {
		if d.functions[i], err = lib.Func(name); err != nil {
			return nil, fmt.Errorf("%w: it is too old: %w", ErrNoDriver, err)
		}
	}
	if err := d.call(fnInit, 0); err != nil {
		return nil, fmt.Errorf("%w that starts: %w", ErrNoDriver, err)
	}
	var version int32
	if err := d.call(fnDriverGetVersion, uintptr(unsafe.Pointer(&version))); err != nil {
		return nil, err
	}
	if d.Version = int(version); version < minDriver {
		return nil, fmt.Errorf("cuda: the driver supports CUDA %s, and Shoal's kernels need %s: install a newer driver",
			d.CUDA(), versionText(minDriver))
	}
	return d, nil
}

// CUDA returns Version as text, such as "13.0".
func (d *Driver) CUDA() string { return versionText(d.Version) }

func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// Error is the failure of a driver function.
type Error struct {
	Function string // such as cuMemAlloc_v2
	Code     int    // CUresult
	Name     string // such as CUDA_ERROR_OUT_OF_MEMORY
	Text     string // the driver's description
}

func (e *Error) Error() string {
	return fmt.Sprintf("cuda: %s: %s (%d): %s", e.Function, e.Name, e.Code, e.Text)
}

// Values of CUresult that callers distinguish.
const (
	CodeOutOfMemory = 2
	codeUnavailable = 46 // CUDA_ERROR_DEVICE_UNAVAILABLE
	codeNotReady    = 600
)

// call calls a function of the driver, and turns its status into an error. Pointers must be
// converted in the argument list itself: only then does the compiler keep their variables in place
// until call returns.
//
//go:uintptrescapes
func (d *Driver) call(fn int, args ...uintptr) error {
	if code := int(int32(d.functions[fn].Call(args...))); code != 0 {
		return d.failure(fn, code)
	}
	return nil
}

// PendingCall returns the name and the number of the call that the driver has not returned from; pending is false
// if there is none. It never waits.
func (d *Driver) PendingCall() (function string, call uint32, pending bool) {
	f, call, pending := d.library.Pending()
	if i := slices.Index(d.functions[:], f); i >= 0 {
		function = functionNames[i]
	}
	return function, call, pending
}

func (d *Driver) failure(fn, code int) error {
	e := &Error{Function: functionNames[fn], Code: code, Name: "unknown error"}
	var p uintptr
	if d.functions[fnGetErrorName].Call(uintptr(code), uintptr(unsafe.Pointer(&p))) == 0 {
		e.Name = native.String(p)
	}
	p = 0
	if d.functions[fnGetErrorString].Call(uintptr(code), uintptr(unsafe.Pointer(&p))) == 0 {
		e.Text = native.String(p)
	}
	return e
}
