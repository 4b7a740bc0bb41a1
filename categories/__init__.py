"""The shipped permission categories: data only. This file makes the folder one that no other folder can shadow."""
