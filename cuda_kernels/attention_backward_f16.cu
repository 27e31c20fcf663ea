// The backward kernels of f16; a file of its own, so that the types compile side by side.
#include "attention_backward_launch.cuh"

namespace voltapile::cuda {

template bool attention_backward_of<__half>(const TensorView&, const TensorView&, const TensorView&,
                                            const TensorView&, const TensorView&, const TensorView&,
                                            Context&, Stream&);

}  // namespace voltapile::cuda
