// All kernels, in one module. package kernels (kernels.go) lists their names.
#include "canonical.h"
#include "types.h"

#include "activations.cu"
#include "embed.cu"
#include "experts.cu"
#include "functions.cu"
#include "logits.cu"
#include "measure.cu"
#include "norm.cu"
#include "ranks.cu"
#include "tiles.cu"

#include "products.cu"
#include "rows.cu"
#include "tiled.cu"
#include "floats.cu"

#include "rope.cu"
#include "attend.cu"
#include "prompt.cu"
#include "mass.cu"
