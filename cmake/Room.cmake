# acespec_add_room(NAME SOURCES file... [LINKS target...])
#
# One room of the C++ library: the static library acespec_<NAME>, headers under csrc/. LINKS is public and lists every
# room whose headers this one includes; a static library whose room is not listed fails to link.
function(acespec_add_room name)
  cmake_parse_arguments(PARSE_ARGV 1 room "" "" "SOURCES;LINKS")
  add_library(acespec_${name} STATIC ${room_SOURCES})
  target_include_directories(acespec_${name} PUBLIC "${PROJECT_SOURCE_DIR}/csrc")
  target_link_libraries(acespec_${name} PUBLIC ${room_LINKS} PRIVATE $<BUILD_INTERFACE:acespec_warnings>)
endfunction()
