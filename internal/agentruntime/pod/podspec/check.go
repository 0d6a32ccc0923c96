package podspec

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// InvalidError is the error for a Workspace whose pod can never work. Only an edit of the Workspace helps.
type InvalidError struct {
	// Problems name the fields, starting with "spec" of the Workspace, and what is wrong with each. There is at least one, and there are at
	// most maxProblems. They contain no values of variables.
	Problems field.ErrorList
}

// maxProblems bounds the problems that are named: a template can have tens of thousands of mounts. The time to join problems to a text grows
// with the square of their number.
const maxProblems = 20

// Error lists the fields with what is wrong with them.
func (e *InvalidError) Error() string {
	return e.Problems.ToAggregate().Error()
}

// check returns an *InvalidError for a pod template that can never work, because it takes away what the system needs, or has what a
// StatefulSet does not allow. Everything else is for the user to decide: host namespaces, probes and hooks, other users and privileges,
// another writable volume for /share.
func check(workspace *autov1alpha1.Workspace, custom *corev1.PodSpec) error {
	root := field.NewPath("spec")
	spec := root.Child("podTemplate", "spec")
	problems := slices.Concat(
		checkProfile(workspace.GetSecurityProfile(), root.Child("securityProfile")),
		checkVariables(workspace.Spec.Env, root.Child("env")),
		checkPod(custom, spec),
		checkUsers(workspace.GetSecurityProfile(), custom, spec),
		checkCloudToken(workspace, custom, root),
		checkSourceMount(workspace, custom, spec.Child("containers")),
		checkVolumes(custom.Volumes, spec.Child("volumes")),
		checkContainers(custom.InitContainers, BootstrapContainerName, spec.Child("initContainers")),
		checkContainers(custom.Containers, autov1alpha1.PulumiContainerName, spec.Child("containers")),
	)
	if len(problems) == 0 {
		return nil
	}
	return &InvalidError{Problems: problems[:min(len(problems), maxProblems)]}
}

func checkProfile(profile autov1alpha1.SecurityProfile, at *field.Path) field.ErrorList {
	profiles := []autov1alpha1.SecurityProfile{autov1alpha1.SecurityProfileBaseline, autov1alpha1.SecurityProfileRestricted}
	if slices.Contains(profiles, profile) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, profile, profiles)}
}

// checkPod checks the fields of the pod itself.
func checkPod(custom *corev1.PodSpec, at *field.Path) field.ErrorList {
	return forbid(at, []rule{
		{custom.RestartPolicy != "" && custom.RestartPolicy != corev1.RestartPolicyAlways, "restartPolicy",
			"the agent has to be started again when it ends; leave the field out"},
		{custom.ActiveDeadlineSeconds != nil, "activeDeadlineSeconds",
			"the pod is kept for later operations; use spec.timeout of the Stack or the Update to limit an operation"},
		{len(custom.EphemeralContainers) > 0, "ephemeralContainers",
			"they can be added to a running pod only, with kubectl debug"},
		{custom.OS != nil && custom.OS.Name != corev1.Linux, "os",
			"the agent needs Linux"},
		{custom.TerminationGracePeriodSeconds != nil && *custom.TerminationGracePeriodSeconds < 0, "terminationGracePeriodSeconds",
			"must not be negative"},
	})
}

// rule is about one field.
type rule struct {
	broken        bool
	field, reason string
}

// forbid returns a problem for each rule that is broken.
func forbid(at *field.Path, rules []rule) field.ErrorList {
	var problems field.ErrorList
	for _, rule := range rules {
		if rule.broken {
			problems = append(problems, field.Forbidden(at.Child(rule.field), rule.reason))
		}
	}
	return problems
}

// checkVolumes protects the generated volumes. The user may replace the volume for /share by another one that is writable.
func checkVolumes(volumes []corev1.Volume, at *field.Path) field.ErrorList {
	var problems field.ErrorList
	for _, volume := range volumes {
		switch {
		case volume.Name == RPCVolume:
			problems = append(problems, field.Forbidden(at.Key(volume.Name), "the name is taken by the volume with the identity of the agent; choose another one"))
		case volume.Name == ShareVolume && isReadOnly(volume.VolumeSource):
			problems = append(problems, field.Forbidden(at.Key(volume.Name), "the agent writes to this volume; use one that can be written, such as an emptyDir or a persistentVolumeClaim"))
		}
	}
	return problems
}

// checkSourceMount keeps the directory of a source that is delivered in its place.
func checkSourceMount(workspace *autov1alpha1.Workspace, custom *corev1.PodSpec, at *field.Path) field.ErrorList {
	var problems field.ErrorList
	for _, container := range custom.Containers {
		for _, mount := range container.VolumeMounts {
			if container.Name == autov1alpha1.PulumiContainerName && workspace.Spec.Local == nil && path.Clean(mount.MountPath) == sourcePath {
				problems = append(problems, field.Forbidden(at.Key(container.Name).Child("volumeMounts").Key(mount.MountPath),
					"the agent replaces the directory with each revision; mount files in it, or define a volume named "+ShareVolume))
			}
		}
	}
	return problems
}

// checkCloudToken protects the token for Pulumi Cloud of a Workspace that has one, and refuses a login that cannot work.
func checkCloudToken(workspace *autov1alpha1.Workspace, custom *corev1.PodSpec, root *field.Path) field.ErrorList {
	if workspace.Spec.PulumiCloud == nil {
		return nil
	}
	var problems field.ErrorList
	if err := workspace.CheckPulumiCloud(); err != nil {
		problems = append(problems, field.Forbidden(root.Child("pulumiCloud"), err.Error()))
	}
	spec := root.Child("podTemplate", "spec")
	for _, volume := range custom.Volumes {
		if volume.Name == CloudTokenVolume {
			problems = append(problems, field.Forbidden(spec.Child("volumes").Key(volume.Name), "the name is taken by the volume with the token for Pulumi Cloud; choose another one"))
		}
	}
	for _, container := range custom.Containers {
		if container.Name != autov1alpha1.PulumiContainerName {
			continue
		}
		for _, mount := range container.VolumeMounts {
			if isIn(mount.MountPath, autov1alpha1.PulumiCloudTokenDir) {
				problems = append(problems, field.Forbidden(spec.Child("containers").Key(container.Name).Child("volumeMounts").Key(mount.MountPath),
					"it would hide the token for Pulumi Cloud; choose another path"))
			}
		}
	}
	return problems
}

// isReadOnly reports whether nobody in the pod can write to the volume.
func isReadOnly(source corev1.VolumeSource) bool {
	return source.ConfigMap != nil || source.Secret != nil || source.DownwardAPI != nil || source.Projected != nil || source.Image != nil ||
		source.PersistentVolumeClaim != nil && source.PersistentVolumeClaim.ReadOnly
}

// checkContainers checks the containers of the pod template. It checks more of the one that customizes the generated container.
func checkContainers(containers []corev1.Container, generated string, at *field.Path) field.ErrorList {
	var problems field.ErrorList
	for i := range containers {
		container := &containers[i]
		in := at.Key(container.Name)
		problems = append(problems, checkVariables(container.Env, in.Child("env"))...)
		switch {
		case container.Name == generated:
			problems = append(problems, checkGenerated(container, in)...)
		case container.Image == "":
			problems = append(problems, field.Required(in.Child("image"), "the only generated container here is "+generated+", this one needs an image"))
		}
	}
	return problems
}

// checkGenerated checks what the user changes about a generated container.
func checkGenerated(container *corev1.Container, at *field.Path) field.ErrorList {
	bootstrap := container.Name == BootstrapContainerName
	problems := forbid(at, []rule{
		{bootstrap && container.Image != "", "image",
			"the agent has to fit the controller; its image is set with the controller's flag --agent-image"},
		{len(container.Command) > 0, "command",
			"the container runs the agent; prepare the pod in an init container, or set an entrypoint for Pulumi in the image's PATH"},
		{len(container.Args) > 0, "args",
			"they are the agent's and set by the controller"},
		{container.RestartPolicy != nil && (bootstrap || *container.RestartPolicy != corev1.ContainerRestartPolicyAlways), "restartPolicy",
			"the controller relies on that of the pod; leave the field out"},
		{len(container.RestartPolicyRules) > 0, "restartPolicyRules",
			"the controller relies on the restart policy of the pod; leave the field out"},
		{container.ReadinessProbe != nil && container.ReadinessProbe.ProbeHandler != (corev1.ProbeHandler{}), "readinessProbe",
			"the pod is ready when the agent is; only thresholds and times can be set, or use a startupProbe"},
	})
	return append(problems, checkMounts(container.VolumeMounts, at.Child("volumeMounts"))...)
}

// checkMounts keeps /share, the agent in it and its identity in their places.
func checkMounts(mounts []corev1.VolumeMount, at *field.Path) field.ErrorList {
	var problems field.ErrorList
	for _, mount := range mounts {
		in := at.Key(mount.MountPath)
		whole := mount.Name == ShareVolume && mount.SubPath == "" && mount.SubPathExpr == "" && !mount.ReadOnly
		switch {
		case path.Clean(mount.MountPath) == sharePath && !whole:
			problems = append(problems, field.Forbidden(in, "the volume "+ShareVolume+" has to be there, as a whole and writable; to have it elsewhere, define a volume of that name"))
		case isIn(mount.MountPath, AgentPath), isIn(mount.MountPath, imagePath):
			problems = append(problems, field.Forbidden(in, "it would hide the agent; choose another path"))
		case isIn(mount.MountPath, RPCPath):
			problems = append(problems, field.Forbidden(in, "it would hide the identity of the agent; choose another path"))
		}
	}
	return problems
}

// isIn reports whether the path is the directory, or in it.
func isIn(name, directory string) bool {
	name = path.Clean(name)
	return name == directory || strings.HasPrefix(name, directory+"/")
}

// checkVariables makes sure that the file with variables from init containers stays where the agent reads it.
func checkVariables(variables []corev1.EnvVar, at *field.Path) field.ErrorList {
	for _, variable := range variables {
		if variable.Name == envFileVariable && variable.Value != EnvFile {
			return field.ErrorList{field.Forbidden(at.Key(envFileVariable), "the agent reads "+EnvFile+"; leave the variable out")}
		}
	}
	return nil
}

// checkUsers finds containers that would run as root although that is forbidden: the kubelet would never start them.
func checkUsers(profile autov1alpha1.SecurityProfile, custom *corev1.PodSpec, at *field.Path) field.ErrorList {
	var problems field.ErrorList
	isRoot := func(user *int64) bool { return user != nil && *user == 0 }
	refuse := func(at *field.Path) {
		problems = append(problems, field.Forbidden(at.Child("securityContext", "runAsUser"),
			"0 is root, which runAsNonRoot forbids; use another user, or set runAsNonRoot to false beside it, or spec.securityProfile to baseline"))
	}
	pod := ptr.Deref(custom.SecurityContext, corev1.PodSecurityContext{})
	forbidden := ptr.Deref(pod.RunAsNonRoot, profile == autov1alpha1.SecurityProfileRestricted)
	if forbidden && isRoot(pod.RunAsUser) {
		refuse(at)
	}
	for i, container := range slices.Concat(custom.InitContainers, custom.Containers) {
		list := "initContainers"
		if i >= len(custom.InitContainers) {
			list = "containers"
		}
		own := ptr.Deref(container.SecurityContext, corev1.SecurityContext{})
		if ptr.Deref(own.RunAsNonRoot, forbidden) && isRoot(own.RunAsUser) {
			refuse(at.Child(list).Key(container.Name))
		}
	}
	return problems
}
