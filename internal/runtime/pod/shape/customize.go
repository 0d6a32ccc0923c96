package shape

import (
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/stack-controller/stack-controller/internal/template"
)

// fetchContainerName is an init container that the Pulumi Kubernetes Operator generates. Here nothing needs to be fetched.
const fetchContainerName = "fetch"

// adapt turns what other versions of the API understand into what this one does: the deprecated name of the service account,
// and a customization of an init container that is not needed any more.
func adapt(custom *corev1.PodSpec) {
	if custom.ServiceAccountName == "" {
		custom.ServiceAccountName = custom.DeprecatedServiceAccount
	}
	custom.DeprecatedServiceAccount = ""
	custom.InitContainers = slices.DeleteFunc(custom.InitContainers, func(container corev1.Container) bool {
		return container.Name == fetchContainerName && container.Image == ""
	})
}

// merge applies the user's pod template, which it may change. The generated containers and volumes stay first, the user's follow in their
// order.
func merge(base corev1.PodSpec, custom *corev1.PodSpec) (corev1.PodSpec, error) {
	var problems field.ErrorList
	root := field.NewPath("spec", "podTemplate", "spec")
	mergeContainers := func(base, custom corev1.Container) corev1.Container {
		merged, err := mergeContainer(base, custom)
		if err != nil {
			problems = append(problems, unmergeable(root.Child("containers").Key(base.Name), err))
		}
		return merged
	}
	// Lists are merged here: a strategic merge would put the user's items first and would take two items with the same key
	// for one even where only another field tells them apart, as in topology constraints and ports.
	initContainers := template.MergeByKey(base.InitContainers, custom.InitContainers, nameOfContainer, mergeContainers)
	containers := template.MergeByKey(base.Containers, custom.Containers, nameOfContainer, mergeContainers)
	volumes := template.MergeByKey(base.Volumes, custom.Volumes, nameOfVolume, mergeVolume)
	constraints := custom.TopologySpreadConstraints
	base.InitContainers, base.Containers, base.Volumes = nil, nil, nil
	custom.InitContainers, custom.Containers, custom.Volumes = nil, nil, nil
	custom.TopologySpreadConstraints = nil
	merged, err := template.Merge(base, custom)
	if err != nil {
		problems = append(problems, unmergeable(root, err))
	}
	if len(problems) > 0 {
		return corev1.PodSpec{}, &InvalidError{Problems: problems}
	}
	merged.InitContainers, merged.Containers, merged.Volumes = initContainers, containers, volumes
	merged.TopologySpreadConstraints = constraints
	return merged, nil
}

// unmergeable says why a strategic merge failed: in a list that is merged by a key there is an item without it.
func unmergeable(at *field.Path, err error) *field.Error {
	return field.Forbidden(at, fmt.Sprintf("cannot be merged over the generated pod: %v", err))
}

// mergeContainer merges a container that the user customizes.
func mergeContainer(base, custom corev1.Container) (corev1.Container, error) {
	env := template.MergeByKey(base.Env, custom.Env, nameOfVariable, template.Replace)
	mounts := template.MergeByKey(base.VolumeMounts, custom.VolumeMounts, pathOfMount, template.Replace)
	ports := template.MergeByKey(base.Ports, custom.Ports, keyOfPort, template.Replace)
	base.Env, base.VolumeMounts, base.Ports = nil, nil, nil
	custom.Env, custom.VolumeMounts, custom.Ports = nil, nil, nil
	merged, err := template.Merge(base, &custom)
	if err != nil {
		return corev1.Container{}, err
	}
	merged.Env, merged.VolumeMounts, merged.Ports = env, mounts, ports
	return merged, nil
}

// mergeVolume lets the user put another volume in the place of a generated one.
func mergeVolume(base, custom corev1.Volume) corev1.Volume {
	if custom.VolumeSource == (corev1.VolumeSource{}) {
		return base
	}
	return custom
}

func nameOfContainer(container corev1.Container) string { return container.Name }
func nameOfVolume(volume corev1.Volume) string          { return volume.Name }
func nameOfVariable(variable corev1.EnvVar) string      { return variable.Name }
func pathOfMount(mount corev1.VolumeMount) string       { return path.Clean(mount.MountPath) }

// keyOfPort tells ports apart as the API does, in which TCP is what nothing else is said of.
func keyOfPort(port corev1.ContainerPort) string {
	protocol := port.Protocol
	if protocol == "" {
		protocol = corev1.ProtocolTCP
	}
	return fmt.Sprintf("%d/%s", port.ContainerPort, protocol)
}
