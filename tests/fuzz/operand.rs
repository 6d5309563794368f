//! Operands: a view, its numbers, and the tensor on the device under test.

use crate::draw::Values;
use crate::expected::{rounded, Expected};
use crate::view::View;
use candle_core::{DType, Device, Result, Tensor, Var};
use rand::rngs::SmallRng;

/// A view with numbers in it. What lies beside it in the storage is NaN, so that nobody can read it unnoticed.
pub struct Operand {
    pub view: View,
    /// The whole storage, a variable where gradients are asked for.
    storage: Tensor,
    variable: Option<Var>,
    /// The view on the device.
    pub tensor: Tensor,
    /// Its numbers in the order of its dimensions, as its type has them.
    pub numbers: Vec<f32>,
    values: Values,
}

impl Operand {
    pub fn new(view: &View, values: Values, rng: &mut SmallRng, variable: bool, device: &Device) -> Result<Self> {
        let scale = |number: f32| number;
        Operand::mapped(view, values, rng, variable, device, scale)
    }

    /// The same with every number mapped.
    pub fn mapped(
        view: &View,
        values: Values,
        rng: &mut SmallRng,
        variable: bool,
        device: &Device,
        map: impl Fn(f32) -> f32,
    ) -> Result<Self> {
        let places = view.places();
        let mut storage = vec![f32::NAN; view.len()];
        for &place in &places {
            storage[place] = map(values.number(view.dtype(), rng));
        }
        Operand::with_storage(view, values, storage, variable, device)
    }

    /// A view of these numbers, rounded to its type.
    pub fn with_storage(
        view: &View,
        values: Values,
        mut storage: Vec<f32>,
        variable: bool,
        device: &Device,
    ) -> Result<Self> {
        for number in &mut storage {
            *number = rounded(view.dtype(), *number);
        }
        let numbers = view.places().into_iter().map(|place| storage[place]).collect();
        let storage = Tensor::from_vec(storage, view.len(), &Device::Cpu)?
            .to_dtype(view.dtype())?
            .to_device(device)?;
        let variable = if variable {
            Some(Var::from_tensor(&storage)?)
        } else {
            None
        };
        let storage = variable
            .as_ref()
            .map_or(storage, |variable| variable.as_tensor().clone());
        Ok(Operand {
            tensor: view.of(&storage)?,
            view: view.clone(),
            storage,
            variable,
            numbers,
            values,
        })
    }

    /// The numbers as the reference computes with them.
    pub fn exact(&self) -> Result<Expected> {
        let numbers = Tensor::from_vec(self.numbers.clone(), self.view.dims(), &Device::Cpu)?;
        Expected::exact(numbers.to_dtype(DType::F64)?, self.values == Values::Whole)
    }

    /// Whether the gradient that `gradients` holds for the storage is that of the view, `expected`, in the type of both, and 0
    /// beside it.
    pub fn check_gradient(
        &self,
        gradients: &candle_core::backprop::GradStore,
        expected: &Expected,
        what: &str,
    ) -> Result<std::result::Result<(), String>> {
        let Some(gradient) = gradients.get(&self.storage) else {
            return Ok(Err(format!("{what}: there is no gradient")));
        };
        let dtype = self.view.dtype();
        let expected = expected.stored(dtype)?;
        let expected = expected.in_storage(&self.view.places(), self.view.len(), dtype)?;
        expected.check(gradient, dtype, &format!("{what}, gradient of the whole storage"))
    }

    pub fn is_variable(&self) -> bool {
        self.variable.is_some()
    }
}
