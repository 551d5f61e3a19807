// All kernels, in one module. package kernels (kernels.go) lists their names.
#include "canonical.h"

#include "activations.cu"
#include "measure.cu"
#include "norm.cu"
#include "products.cu"
