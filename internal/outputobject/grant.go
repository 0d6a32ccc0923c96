package outputobject

import (
	"cmp"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Names returns the objects that spec.outputs of the Stack names, without what they have.
func Names(stack *pulumiv1.Stack) (objects []*Object) {
	for i := range stack.Spec.Outputs {
		wanted := &stack.Spec.Outputs[i]
		objects = append(objects, &Object{Kind: cmp.Or(wanted.Kind, pulumiv1.OutputSecret), Namespace: stack.Namespace, Name: wanted.Name})
	}
	return objects
}

// Grant returns a Role with the rights to write exactly these objects, and a binding to the controller. The names of both are made from that
// of the Stack.
func Grant(stack *pulumiv1.Stack, objects []*Object, controller rbacv1.Subject) (*rbacv1.Role, *rbacv1.RoleBinding) {
	names := map[string][]string{}
	for _, object := range objects {
		resource := resourceOf(object.Kind)
		names[resource] = append(names[resource], object.Name)
	}
	metadata := metav1.ObjectMeta{Namespace: stack.Namespace, Name: "stack-controller-outputs-" + stack.Name}
	role := &rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"}, ObjectMeta: metadata}
	for _, resource := range slices.Sorted(maps.Keys(names)) {
		slices.Sort(names[resource])
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{resource}, ResourceNames: names[resource], Verbs: []string{"create", "patch", "delete"},
		})
	}
	return role, &rbacv1.RoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"}, ObjectMeta: metadata,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{controller},
	}
}
