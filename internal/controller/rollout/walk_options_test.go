package rollout

import pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"

// otherOptions are what can happen besides to what is decided about the target, and to what new Stacks begin with.
func (w *walker) otherOptions() map[string]func() {
	return map[string]func(){
		"all are suspended": func() {
			for i, stack := range w.stacks {
				w.change(i, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
				w.clean[stack.Name+letterOf(stack)] = true // its wave is complete without it, and opens no more for a check
			}
		},
	}
}
