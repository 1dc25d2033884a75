# Doxygen's view of a header: an example that is indented by three blanks or more is code, and a comment behind a member
# belongs to that member, with the lines that continue it.
/^ *\/\/\/   +[^ ]/ { sub(/\/\/\/   /, "///       "); behind = 0; print; next }
/[;,{] +\/\/ / && !/^ *\/\// && !/NOLINT/ { sub(/\/\/ /, "///< "); behind = 1; print; next }
behind && /^ +\/\/ / { sub(/\/\/ /, "///< "); print; next }
{ behind = 0; print }
